"""What the arguments of a function or class must satisfy, read from the types of its parameters."""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from fedfeat.config.conditions import BOOL, INTEGER, Condition, list_of, one_of

HANDED_ON = "arguments"
"""A constructor's ``**arguments`` are those of its base; what becomes of a ``**name`` else is its own affair."""

_PLAIN: dict[Any, Condition] = {
    bool: BOOL,
    int: INTEGER,
    float: Condition(lambda value: type(value) in (int, float), "be a number", {"type": "number"}),
    **dict.fromkeys(
        (str, Path), Condition(lambda value: isinstance(value, str), "be a text", {"type": "string"})
    ),
    NoneType: Condition(lambda value: value is None, "be null", {"type": "null"}),
}
_LISTS = (list, tuple, set, frozenset, Sequence, Collection, Iterable)
_LIST = Condition(lambda value: isinstance(value, list), "be a list", {"type": "array"})
_SECTION = Condition(
    lambda value: isinstance(value, Mapping), "be a section with keys of its own", {"type": "object"}
)
_ANY = Condition(lambda value: True, "be anything")


class Parameters(NamedTuple):
    """What a function or class takes: names with their types, `Any` where none is declared.

    It may take more of them, of which nothing is known.
    """

    types: dict[str, Any]
    takes_more: bool = False


def parameters(target: Callable[..., Any]) -> Parameters | None:
    """Read the parameters of a function or class, those of its bases where it hands on ``**arguments`` to them.

    Returns:
        None where it has no signature, as some of what is written in C.
    """
    types: dict[str, Any] = {}
    takes_more = False
    try:
        for function, hints in constructors(target):
            found = inspect.signature(function).parameters.values()
            for one in found:
                if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                    types.setdefault(one.name, hints.get(one.name, Any))
            rest = [one.name for one in found if one.kind is one.VAR_KEYWORD]
            takes_more |= any(name != HANDED_ON for name in rest)
            if not rest:
                return Parameters(types, takes_more)
    except (TypeError, ValueError):
        return None
    return Parameters(types, takes_more=True)


def condition(declared: Any) -> Condition | None:
    """Give what a value of a declared type must satisfy; None where that is not known.

    A section that has a ``_target_`` stands for the object that is made of it, so it may be anywhere. Conditions in
    ``Annotated`` stand in the place of the type. Schemas say nothing of such sections; `schemas.values` does.
    """
    found = _condition(declared)
    if found is None:
        return None
    return found._replace(holds=lambda value: makes_object(value) or found.holds(value))


def makes_object(value: Any) -> bool:
    """Whether Hydra makes an object of a value."""
    return isinstance(value, Mapping) and "_target_" in value


def record(declared: Any) -> type | None:
    """Give the dataclass or named tuple that a declared type is, or has beside None and the like."""
    if get_origin(declared) in (Annotated, Union, UnionType):
        return next((kind for kind in map(record, get_args(declared)) if kind), None)
    is_record = isinstance(declared, type) and (is_dataclass(declared) or hasattr(declared, "_fields"))
    return declared if is_record else None


def classes_taken(declared: Any) -> bool:
    """Whether a declared type is a list of classes."""
    return get_origin(declared) in _LISTS and any(get_origin(one) is type for one in get_args(declared))


def constructors(target: Callable[..., Any]) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """Go through what reads a target's arguments, with its types: each hands on to the next what it does not know."""
    bases = inspect.getmro(target)[:-1] if inspect.isclass(target) else ()
    owners = [base for base in bases if "__init__" in vars(base)]
    if not owners:
        yield target, _hints(target)
    for owner in owners:
        init = vars(owner)["__init__"]
        # Bound to anything, so that its signature lacks `self`.
        yield init.__get__(object()), _hints(init) | (_hints(owner) if is_dataclass(owner) else {})


def _hints(owner: Any) -> dict[str, Any]:
    """Give the declared types by name, without those that cannot be found, as what only type checkers import."""
    found: dict[str, Any] = {}
    for part in reversed(owner.__mro__) if inspect.isclass(owner) else (inspect.unwrap(owner),):
        names = vars(sys.modules[part.__module__]) if getattr(part, "__module__", None) in sys.modules else {}
        for name, declared in inspect.get_annotations(part).items():
            with suppress(NameError, TypeError, AttributeError):
                holder = SimpleNamespace(__annotations__={name: declared})
                found |= get_type_hints(holder, names, include_extras=True)
    return found


def _condition(declared: Any) -> Condition | None:
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Annotated:
        given = [one for one in declared.__metadata__ if isinstance(one, Condition)]
        return _both(given) if given else condition(arguments[0])
    if origin is Literal:
        return one_of(*arguments)
    if origin in (Union, UnionType):
        return _either([condition(one) for one in arguments if one is not NoneType], NoneType in arguments)
    if declared in _PLAIN:
        return _PLAIN[declared]
    kind = origin or declared
    if kind in _LISTS:
        return _list(arguments, of_any_length=kind is not tuple or Ellipsis in arguments)
    if kind in (dict, Mapping):
        return _mapping(condition(arguments[1]) if arguments else None)
    return _SECTION if record(kind) or _is_interface(kind) else None


def _is_interface(kind: Any) -> bool:
    """Whether only objects made by Hydra can be of a type; of other classes, some are made of a text or number."""
    return inspect.isabstract(kind) and kind.__module__.partition(".")[0] not in sys.stdlib_module_names


def _both(conditions: Sequence[Condition]) -> Condition:
    return Condition(
        lambda value: all(one.holds(value) for one in conditions),
        " and ".join(one.text for one in conditions),
        conditions[0].schema if len(conditions) == 1 else {"allOf": [one.schema for one in conditions]},
    )


def _either(conditions: Sequence[Condition | None], optional: bool) -> Condition | None:
    known = [one for one in conditions if one is not None]
    if len(known) < len(conditions):
        return None
    words = ", or ".join(dict.fromkeys(one.text.removeprefix("be ") for one in known))
    return Condition(
        lambda value: (optional and value is None) or any(one.holds(value) for one in known),
        f"be {words}",
        _alternatives([*(one.schema for one in known), *([_PLAIN[NoneType].schema] if optional else [])]),
    )


def _alternatives(schemas: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def _list(items: Sequence[Any], of_any_length: bool) -> Condition:
    if of_any_length:
        item = condition(items[0]) if items else None
        return list_of(item) if item else _LIST
    each = [condition(one) or _ANY for one in items]
    words = ", ".join(one.text.removeprefix("be ") for one in each)
    return Condition(
        lambda value: (
            isinstance(value, list)
            and len(value) == len(each)
            and all(one.holds(part) for one, part in zip(each, value, strict=True))
        ),
        f"be a list of {words}",
        {
            **_LIST.schema,
            "items": [one.schema for one in each],
            "minItems": len(each),
            "maxItems": len(each),
        },
    )


def _mapping(item: Condition | None) -> Condition:
    if item is None:
        return _SECTION
    return Condition(
        lambda value: isinstance(value, Mapping) and all(map(item.holds, value.values())),
        f"be a section in which each value must {item.text}",
        {**_SECTION.schema, "additionalProperties": item.schema},
    )
