"""Values as a person, or a table of one column per key, has them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard


def flatten(tree: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Turn nested dictionaries into one whose keys are paths; an empty one inside stays."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            inner = flatten(value, separator)
            flat.update({f"{key}{separator}{path}": leaf for path, leaf in inner.items()})
        else:
            flat[str(key)] = value
    return flat


def written(value: Any) -> str:
    """Write a value as the command line takes it; 1 and 1.0 are one."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    # Sixteen digits or more would show a float's error, as in 0.30000000000000004.
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a configuration or a summary is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def option_name(target: str) -> str:
    """Name a class or function as the options of a group are named: ``x.NClasses`` is ``n_classes``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", target.rpartition(".")[2]).lower()


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown, a line each."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, ["---"] * len(header), *rows))


def csv_table(rows: Iterable[Sequence[object]]) -> str:
    """Write a table as a CSV file has it, the header first."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def broken_name(name: str, width: int) -> str:
    """Break a folder's name into lines of at most ``width`` characters, behind ``/`` or ``,`` where there is one."""
    lines = [""]
    for part in re.findall(r"[^/,]+[/,]?|[/,]", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line[at : at + width] for line in lines for at in range(0, len(line) or 1, width))


def format_bytes(count: float) -> str:
    """Write a number of bytes in three digits with a decimal unit, e.g. ``1.5 MB``."""
    if not math.isfinite(count):
        return f"{count:g}"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(float(text := f"{count:.3g}")) < 1000:
            return f"{text} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
