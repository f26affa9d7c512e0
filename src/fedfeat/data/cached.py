"""Features in the place of inputs: what a frozen part of a network gives, computed once and kept on disk."""

import json
import logging
from collections.abc import Callable
from copy import copy
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedfeat import tree
from fedfeat.data.examples import Examples
from fedfeat.data.federated import FederatedData
from fedfeat.errors import DataError
from fedfeat.files import atomic_write_bytes, remove_leftovers

_log = logging.getLogger("fedfeat")
# Part of every key; raised when the same inputs begin to give other features.
_FORMAT = 2
_PART = 500
_NAME = "features"


def with_features(
    data: FederatedData, encode: Callable[[Tensor], Tensor], key: dict[str, Any], cache_dir: Path | str
) -> FederatedData:
    """Give the same data with features for inputs: of training, test and public examples, each passed once.

    Args:
        data: The data; its inputs are not augmented, and every client sees them alike.
        encode: From inputs as a network reads them, (B, ...), to features, (B, ...).
        key: Whatever else tells the features: of which weights, layers, precision and device they are.
        cache_dir: They lie in ``<cache_dir>/features/<sha256 of what they depend on>.safetensors``, with their digest.
    """
    folder = Path(cache_dir) / "features"
    scaling = tree.sha256(list(data._pipeline.scaling))
    key = {"format": _FORMAT, "torch": torch.__version__, "scaling": scaling, **key}

    def change(examples: Examples) -> Examples:
        own = {**key, "examples": examples.inputs_sha256 or examples.digest()}
        features = _load_or_make(folder, own, lambda: _through(encode, data.plain, examples.inputs))
        return Examples(features.to(data.device), examples.labels, examples.columns)

    one = copy(data)
    one._train, one._test = change(data._train), change(data._test)
    one._public = change(data._public) if data._public else None
    return one


@torch.no_grad()
def _through(encode: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Give the features (N, ...) of inputs (N, ...) as they are stored, on the CPU."""
    parts = inputs.split(_PART)
    first = encode(plain(parts[0])).cpu()
    found = first.new_empty(len(inputs), *first.shape[1:])
    found[: len(first)] = first
    for number, part in enumerate(parts[1:], start=1):
        found[number * _PART : number * _PART + len(part)] = encode(plain(part))
    return found


def _load_or_make(folder: Path, key: dict[str, Any], make: Callable[[], Tensor]) -> Tensor:
    text = json.dumps(key, sort_keys=True)
    path = folder / f"{sha256(text.encode()).hexdigest()}.safetensors"
    found = _read(path)
    how = "found in"
    if found is None:
        if path.exists():
            _log.warning(
                "The features %s must match their digest, but they have been altered: they are made again.",
                path,
            )
        found, how = make(), "made once and kept in"
        try:
            remove_leftovers(folder)
            atomic_write_bytes(path, save({_NAME: found}, {"key": text, "sha256": tree.sha256(found)}))
        except OSError as error:
            raise DataError.unwritable("features", folder, error) from error
    _log.info("Features of %d examples, %s each, %.1f MB: %s %s.", len(found), "x".join(map(str, found.shape[1:])),
              found.numel() * found.element_size() / 1e6, how, path)  # fmt: skip
    return found


def _read(path: Path) -> Tensor | None:
    """Read stored features; None where there are none or they are damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            found = file.get_tensor(_NAME)
            return found if tree.sha256(found) == file.metadata()["sha256"] else None
    except (OSError, SafetensorError, LookupError, TypeError):
        return None
