"""The CSV tables of a run directory, row by row, and whether they have what the rounds so far have written."""

import csv
import io
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfeat.errors import CheckpointError
from fedfeat.files import atomic_write_text

METRICS = "metrics.csv"
REPAIRED = "repaired"
"""Column of metrics.csv that is 1 in rows which were lost and are here as far as a checkpoint knew them."""

_log = logging.getLogger("fedfeat")


def complete_rows(path: Path) -> Iterator[list[str]]:
    """Give the columns of a file, if it exists, and its rows one by one, without lines that are torn or unreadable.

    For whoever writes the file anew: at its end it warns of the lines that are not in it any more.
    """
    dropped = 0
    for row in _lines(path):
        if row is None:
            dropped += 1
        else:
            yield row
    if dropped:
        _log.warning("%s: dropped %d torn line(s), left by an interrupted run.", path, dropped)


def _read_rows(path: Path) -> Iterator[list[str]]:
    return (row for row in _lines(path) if row is not None)


def rows_so_far(path: Path) -> list[dict[str, str]]:
    """Give the rows of a table that somebody may be writing now, by column; none where it cannot be read."""
    try:
        columns, *rows = _read_rows(path)
    except (OSError, ValueError):
        return []
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _lines(path: Path) -> Iterator[list[str] | None]:
    """Give the columns of a file, if it exists, and its rows; None for a line that is torn or unreadable."""
    if not path.exists():
        return
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        columns = next(csv.reader([file.readline().replace("\0", "")]), [])
        yield columns
        for line in file:
            values = next(csv.reader([line.replace("\0", "")]), [])
            whole = line.endswith("\n") and len(values) == len(columns) > 0 and values[0].isdecimal()
            yield values if whole else None


def check_tables(
    run_dir: Path, round_idx: int, evaluated: Collection[int], written: Mapping[str, int]
) -> None:
    """Refuse a run directory whose tables lack rows of rounds that are in its checkpoint.

    Args:
        run_dir: The directory.
        round_idx: Round of the checkpoint.
        evaluated: The evaluated rounds up to that one.
        written: Rows that every table had then, by its path within the directory; tables that are not among them are
            not looked at.

    Raises:
        CheckpointError: Names the first table and what it lacks.
    """
    lost = sorted(set(evaluated) - set(_rounds(run_dir / METRICS, round_idx)))
    if lost:
        raise CheckpointError(
            _lacks(run_dir / METRICS, round_idx, f"those of rounds {_few(lost)} are missing")
        )
    for name, count in written.items():
        found = len(_rounds(run_dir / name, round_idx))
        if found < count:
            raise CheckpointError(
                _lacks(run_dir / name, round_idx, f"{count - found} of {count} are missing")
            )


def repair_tables(
    run_dir: Path,
    round_idx: int,
    evaluated: Collection[int],
    known: Mapping[int, Mapping[str, float]],
    written: Mapping[str, int],
) -> dict[str, Any]:
    """Put rows for lost rounds into metrics.csv; what other tables have lost stays lost.

    Args:
        run_dir: See `check_tables`.
        round_idx: Likewise.
        evaluated: Likewise.
        known: Metrics of evaluated rounds, as far as checkpoints have them.
        written: See `check_tables`.

    Returns:
        The rounds of metrics.csv that were lost, and how many rows other tables have lost, by their names; nothing
        where all is there.
    """
    path = run_dir / METRICS
    lost = sorted(set(evaluated) - set(_rounds(path, round_idx)))
    found: dict[str, Any] = {METRICS: lost} if lost else {}
    if lost:
        columns, *rows = _whole_lines(path)
        kept = [dict(zip(columns, row, strict=True)) for row in rows]
        made = [{"round": r, REPAIRED: 1, **known.get(r, {})} for r in lost]
        _write(path, sorted([*kept, *made], key=lambda row: int(row["round"])))
    for name, count in written.items():
        missing = count - len(_rounds(run_dir / name, round_idx))
        if missing > 0 and name != METRICS:
            found[name] = missing
            if not _is_table(run_dir / name):
                (run_dir / name).unlink(missing_ok=True)
    for name, what in found.items():
        _log.warning(
            "%s lacked rows: %s.", run_dir / name, what if name != METRICS else f"rounds {_few(what)}"
        )
    return found


def repaired_rounds(run_dir: Path) -> list[int]:
    """Give the rounds of metrics.csv whose rows a repair has put in."""
    columns, *rows = _whole_lines(run_dir / METRICS)
    if REPAIRED not in columns:
        return []
    return [int(row[columns.index("round")]) for row in rows if row[columns.index(REPAIRED)] == "1"]


def _whole_lines(path: Path) -> list[list[str]]:
    """Give head and whole rows of a table; what is none has a head alone."""
    return (list(_read_rows(path)) if _is_table(path) else []) or [["round"]]


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    columns = dict.fromkeys(["round", "cohort_size", *(key for row in rows for key in row)])
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    atomic_write_text(path, text.getvalue())


def _rounds(path: Path, last: int) -> list[int]:
    """List the rounds of a table's rows up to one, a round once for each of its rows; none where it is no table."""
    rows = _read_rows(path) if _is_table(path) else iter(())
    next(rows, None)
    return [found for row in rows if (found := int(row[0])) <= last]


def _is_table(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.readline().split(b",")[0].strip() == b"round"


def _lacks(path: Path, round_idx: int, what: str) -> str:
    return (
        f"{path} must have the rows of the rounds up to {round_idx}, which are in the checkpoint, but {what}; "
        "resume=repair goes on without them, and marks what it can put in their place."
    )


def _few(rounds: Sequence[int]) -> str:
    shown = ", ".join(map(str, rounds[:3]))
    return f"{shown} and {len(rounds) - 3} more" if len(rounds) > 3 else shown
