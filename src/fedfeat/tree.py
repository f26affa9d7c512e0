"""Trees of plain values and tensors: taken apart, put together, counted, hashed and copied.

A tree is a tensor, None, a bool, int, float or str, or a named tuple, data class, dictionary, list or tuple
of trees. Subclasses of dict, list and tuple (``OrderedDict``, ``torch.Size``) come back as what they derive
from; fields of a data class that its constructor does not take are left to the constructor.
"""

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fedfeat.errors import CheckpointError

TRUSTED = ("fedfeat",)
"""Packages whose record classes may be imported when a tree is read back."""

_SCALARS = (type(None), bool, int, float, str)


def tensors(value: Any) -> list[Tensor]:
    """List the tensors of a tree, in the order of fields, items and insertion."""
    found: list[Tensor] = []
    _collect(value, found)
    return found


def flatten(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a tree into a skeleton that JSON can hold and its named tensors.

    Args:
        value: A tree.

    Returns:
        The skeleton, and the tensors by ``<number>/<path>``. Tensors are not copied.

    Raises:
        TypeError: The tree holds something that is none of the known kinds.
    """
    named: dict[str, Tensor] = {}
    return _skeleton(value, "", named), named


def unflatten(skeleton: Any, named: dict[str, Tensor], trusted: tuple[str, ...] = TRUSTED) -> Any:
    """Put a tree together again; the inverse of `flatten`.

    Args:
        skeleton: The first half of `flatten`'s result.
        named: The second half.
        trusted: Packages whose classes may be imported.

    Raises:
        CheckpointError: A record's class is not trusted, is gone or has other fields, or a tensor is missing.
    """
    if not isinstance(skeleton, dict):
        return skeleton
    ((kind, body),) = skeleton.items()
    if kind == "tensor":
        if body not in named:
            raise CheckpointError(f"The tensor {body} is named by the skeleton but is not stored.")
        return named[body]
    if kind == "dict":
        return {key: unflatten(child, named, trusted) for key, child in body}
    if kind in ("list", "tuple"):
        children = [unflatten(child, named, trusted) for child in body]
        return children if kind == "list" else tuple(children)
    if kind == "record":
        name, fields = body
        return _build(name, {key: unflatten(child, named, trusted) for key, child in fields}, trusted)
    raise CheckpointError(f"The skeleton names the unknown kind {kind!r}.")


def identical(left: Any, right: Any) -> bool:
    """Whether two trees have the very same tensors in the same places, and equal plain values; data classes: be one."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(identical(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(identical, left, right))
    return isinstance(left, _SCALARS) and bool(left == right)


def num_bytes(value: Any) -> int:
    """Count the bytes of all tensors: elements times element size."""
    if isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], dict):
        known = getattr(value[0], "num_bytes", None)  # a row of a stack, such as all of its round are
        if known is not None:
            return int(known)
    return sum([tensor.nbytes for tensor in tensors(value)])


class ByteCounter:
    """`num_bytes` of trees that are mostly the same one, which is looked through once."""

    def __init__(self) -> None:
        self._last: Any = None
        self._num_bytes = 0

    def __call__(self, value: Any) -> int:
        """Count the bytes of all tensors."""
        if not identical(value, self._last):
            self._last, self._num_bytes = value, num_bytes(value)
        return self._num_bytes


def outline(tensor: Tensor) -> Tensor:
    """Give a tensor of that type and shape without numbers."""
    return torch.empty_like(tensor, device="meta")


def sha256(value: Any, parts: Iterable[Any] | None = None) -> str:
    """Hash structure, scalars, and the types, shapes and bytes of all tensors; the device does not matter.

    Args:
        value: A tree.
        parts: Trees that have its tensors in its order, for one whose own may be outlines; None: its own.
    """
    skeleton, _ = flatten(value)
    digest = hashlib.sha256(json.dumps(skeleton).encode())
    for tensor in (tensor for part in ([value] if parts is None else parts) for tensor in tensors(part)):
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)  # bytes, because NumPy has no bfloat16
    return digest.hexdigest()


def is_finite(value: Any) -> bool:
    """Tell whether no floating tensor of a tree holds an infinity or a NaN.

    A finite sum has finite terms, and sums are cheap; elements are looked at only where one may have overflowed.
    """
    kept = [leaf for leaf in tensors(value) if leaf.is_floating_point() or leaf.is_complex()]
    kept.sort(key=_device_and_dtype)
    for _, group in groupby(kept, key=_device_and_dtype):
        leaves = list(group)
        sums = torch.stack(
            [leaf.detach().sum() for leaf in leaves]
        )  # one synchronisation per device and type
        if not sums.isfinite().all() and not all(leaf.isfinite().all() for leaf in leaves):
            return False
    return True


def transform(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Give the same tree with the function applied to every tensor."""
    if isinstance(value, Tensor):
        return function(value)
    children = _children(value)
    if children is None:
        return value
    mapped = {key: transform(child, function) for key, child in children}
    if isinstance(value, dict):
        return mapped
    if _is_record(type(value)):
        return type(value)(**mapped)
    return list(mapped.values()) if isinstance(value, list) else tuple(mapped.values())


def _device_and_dtype(tensor: Tensor) -> tuple[str, str]:
    return str(tensor.device), str(tensor.dtype)


def _is_record(cls: type) -> bool:
    return (issubclass(cls, tuple) and hasattr(cls, "_fields")) or dataclasses.is_dataclass(cls)


def _children(value: Any) -> list[tuple[Any, Any]] | None:
    """List the keys and children of an inner node; None for a leaf."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(part.name, getattr(value, part.name)) for part in dataclasses.fields(value) if part.init]
    return None


def _collect(value: Any, found: list[Tensor]) -> None:
    # Asked for every payload of a round, so the usual nodes come first and no path is made.
    if isinstance(value, dict):
        children: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        children = value
    elif isinstance(value, Tensor):
        found.append(value)
        return
    else:
        children = [child for _, child in _children(value) or ()]
    for child in children:
        if type(child) is Tensor:
            found.append(child)
        else:
            _collect(child, found)


def _skeleton(value: Any, path: str, named: dict[str, Tensor]) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Tensor):
        name = f"{len(named):05d}{path}"  # the number keeps names apart where keys contain slashes
        named[name] = value
        return {"tensor": name}
    children = _children(value)
    if children is None:
        raise TypeError(f"A tree cannot hold a {type(value).__name__} (at {path or '/'}).")
    inner = [(key, _skeleton(child, f"{path}/{key}", named)) for key, child in children]
    if isinstance(value, dict):
        for key, _ in inner:
            if type(key) not in _SCALARS:
                raise TypeError(f"A tree cannot have a {type(key).__name__} as a key (at {path or '/'}).")
        return {"dict": [[key, child] for key, child in inner]}
    if _is_record(type(value)):
        cls = type(value)
        return {"record": [f"{cls.__module__}:{cls.__qualname__}", [[key, child] for key, child in inner]]}
    return {"list" if isinstance(value, list) else "tuple": [child for _, child in inner]}


def _build(name: str, fields: dict[str, Any], trusted: tuple[str, ...]) -> Any:
    """Import the record class ``module:qualname`` and build one."""
    module, _, qualname = name.partition(":")
    parts = module.split(".")
    # Importing a package's command would run it.
    if (
        not any(parts[: len(one)] == one for one in (package.split(".") for package in trusted))
        or "__main__" in parts
    ):
        raise CheckpointError(f"The class {name} must come from {' or '.join(trusted)} to be read back.")
    try:
        cls: Any = importlib.import_module(module)
        for part in qualname.split("."):
            cls = getattr(cls, part)
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"The class {name} that was saved cannot be imported: {error}.") from error
    if not isinstance(cls, type) or cls.__module__ != module or not _is_record(cls):
        raise CheckpointError(f"{name} must be a named tuple or a data class to be read back.")
    try:
        return cls(**fields)
    except TypeError as error:
        raise CheckpointError(f"The class {name} has changed since it was saved: {error}.") from error
