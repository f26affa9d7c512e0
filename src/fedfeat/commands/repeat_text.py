"""What is said of a run that was made again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedfeat.data.fingerprint import Fingerprint
from fedfeat.evidence.stored import federation
from fedfeat.runs.directory import fingerprint_of
from fedfeat.runs.divergence import has_diverged
from fedfeat.runs.repetition import Parting, partings
from fedfeat.runs.tables import METRICS, rows_so_far
from fedfeat.runs.weight_files import noted

_COUNTED = ("comm/", "compute/")


def say(folder: Path, place: Path, rows: Sequence[dict[str, str]]) -> None:
    """Say how a run and its repetition have ended, whether they had the same data, and where their numbers part.

    Args:
        folder: The run.
        place: Its repetition.
        rows: The repetition's rows of metrics.csv.
    """
    kept = rows_so_far(folder / METRICS)
    found = partings(kept, rows)
    apart = [one for one in found if one.since is not None]
    was, now = int(kept[-1]["round"]), int(rows[-1]["round"])
    which = f"{len(found) - len(apart)} of {len(found)} quantities are" if apart else "all quantities are"
    rounds = f"{min(was, now)} of {federation(folder)['num_rounds']}"
    said = f"Up to round {rounds}, {which} the same to six digits{'; the others:' if apart else '.'}"
    ended = _divergence(has_diverged(folder), has_diverged(place), goes_on=now > was)
    console = Console()
    for line in (str(folder), str(place), *_other_data(folder, place), *ended, said):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if apart:
        console.print(_table(apart, min(was, now)))
    if any(one.quantity.startswith(_COUNTED) for one in apart):
        console.print("Bytes, examples and FLOPs must never part: it is not the same run.", soft_wrap=True)


def _divergence(kept: bool, again: bool, goes_on: bool) -> Iterator[str]:
    """Say whether a run and its repetition have diverged; of one that is not as far as the other, nothing is known."""
    if kept and again:
        yield "Both have diverged."
    elif again:
        yield "This one has diverged, the kept one has not."
    elif kept and goes_on:
        yield "The kept one has diverged, this one has not."


def _other_data(folder: Path, place: Path) -> Iterator[str]:
    """Say which data of a repetition are others than those of the kept run, as far as both say."""
    digests = zip(Fingerprint._fields, fingerprint_of(folder), fingerprint_of(place), strict=False)
    for what, old, new in digests:
        if old != new:
            yield f"The digest of its {what} is {new[:12]} instead of {old[:12]}: it had other data."
    had, has = noted(folder), noted(place)
    for key in sorted(had.keys() & has.keys()):
        if had[key] != has[key]:
            yield f"The file of {key} is {has[key][:12]} instead of {had[key][:12]}: it began with other weights."


def _table(apart: Sequence[Parting], last: int) -> Table:
    table = Table(box=None, pad_edge=False)
    # A name may go on in the next line, a number must not be cut.
    table.add_column("quantity", overflow="fold")
    for heading in (f"kept, round {last}", "again", "most apart", "since round"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in apart:
        digits = next((n for n in (5, 9) if f"{one.kept:.{n}g}" != f"{one.again:.{n}g}"), 5)
        numbers = (f"{value:.{digits}g}" for value in (one.kept, one.again))
        table.add_row(one.quantity, *numbers, f"{one.largest:.2g}", str(one.since))
    return table
