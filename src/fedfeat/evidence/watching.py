"""Runs below a folder as their files tell them, while they are made: how far, how good, until when, and what failed.

Files are read and nothing else, so it works wherever the folder can be seen. They may be half written, or vanish.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fedfeat.config.objective import judged_by, validated_by
from fedfeat.evidence.lengths import Standing, standing_of
from fedfeat.evidence.processes import LOG
from fedfeat.files import read_yaml
from fedfeat.runs.below import walk
from fedfeat.runs.directory import FAILURE
from fedfeat.runs.tables import METRICS, rows_so_far

STATES = ("failed", "quiet", "running", "cut short", "finished")
"""What a run can be, in the order in which runs are shown."""
_HIDDEN = {".hydra", ".submitit"}
_PATIENCE_S = 120.0
_ROUNDS = 5  # of silence
_ENDED = re.compile(r"^(exit -?\d+: .*|pruned after round \d+|fedfeat: .*)$")


class Watched(NamedTuple):
    """A run.

    Attributes:
        name: Its folder below the one that is watched, or below what all watched ones have in common.
        state: One of `STATES`.
        standing: How far it is; None before its first evaluation.
        accuracy: What it is judged by, at its last evaluation; None where there is none.
        validation: The same on validation data.
        seconds_left: An estimate, while it runs.
        said: The sentence of a failure, or how long nothing has happened.
    """

    name: str
    state: str
    standing: Standing | None
    accuracy: float | None = None
    validation: float | None = None
    seconds_left: float | None = None
    said: str = ""


def watched(
    *folders: Path, now: float | None = None, finished: dict[Path, Watched] | None = None
) -> list[Watched]:
    """Read all runs below some folders, in the order of `STATES`, then of names.

    Args:
        folders: The folders.
        now: Seconds since the epoch; None asks the clock.
        finished: Those that are known to have finished, which stay so and are not read again; it is added to.
    """
    now = time.time() if now is None else now
    known = {} if finished is None else finished
    whole = [folder.absolute() for folder in folders]
    above = Path(os.path.commonpath(whole))
    places = (place for folder in whole for place in run_folders(folder))
    found = {place: known.get(place) or _read(above, place, now) for place in places}
    known |= {place: run for place, run in found.items() if run.state == "finished"}
    return sorted(found.values(), key=lambda run: (STATES.index(run.state), run.name))


def run_folders(folder: Path) -> Iterator[Path]:
    """Go through the folders of runs; what vanishes meanwhile is none."""
    for place, folders, files in walk(folder):
        if {"config.yaml", LOG, FAILURE}.intersection(files):
            folders[:] = []
            yield place
        else:
            folders[:] = [name for name in folders if name not in _HIDDEN]


def _read(folder: Path, place: Path, now: float) -> Watched:
    name = str(place.relative_to(folder)) if place != folder else place.name
    federation, rows = _federation(place), rows_so_far(place / METRICS)
    found, target = standing_of(rows, federation), federation.get("target_metric")
    last = rows[-1] if rows else {}
    accuracy, validation = (_number(last, by(last, target)) for by in (judged_by, validated_by))
    state, said = _state(place, found, now)
    left = None
    if state == "running" and found and (whole := found.whole()):
        left = max(0.0, whole - found.seconds)
    return Watched(name, state, found, accuracy, validation, left, said)


def _state(place: Path, found: Standing | None, now: float) -> tuple[str, str]:
    if _is_finished(place):
        return "finished", ""
    if sentence := _text(place / FAILURE).strip():
        return "failed", sentence
    lines = _text(place / LOG).strip().splitlines()
    if lines and (ended := _ENDED.match(lines[-1])):
        return ("cut short" if ended[1].startswith("pruned") else "failed"), ended[1]
    silence = now - _newest(place)
    a_round = found.seconds / found.round_idx if found and found.round_idx else 0.0
    if silence > max(_PATIENCE_S, _ROUNDS * a_round):
        return "quiet", f"nothing for {silence / 60:.0f} min"
    return "running", ""


def _is_finished(place: Path) -> bool:
    with suppress(OSError, ValueError):
        found = json.loads((place / "summary.json").read_text())
        return isinstance(found, dict) and "final" in found
    return False


def _newest(place: Path) -> float:
    """Give when something was last written: a row, a checkpoint, a line of the log."""
    times = [0.0]
    for path in (
        place / METRICS,
        place / LOG,
        place / "config.yaml",
        place / "checkpoints",
        place / "clients",
    ):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _federation(place: Path) -> dict[str, Any]:
    """Read a section of a configuration, which may be half written, or of something else; {} where it is none."""
    with suppress(OSError, ValueError, yaml.YAMLError):
        config = read_yaml(place / "config.yaml")
        found = config.get("federation") if isinstance(config, dict) else None
        return found if isinstance(found, dict) else {}
    return {}


def _number(row: dict[str, str], name: str | None) -> float | None:
    with suppress(ValueError):
        return float(row[name]) if name and row[name] else None
    return None


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
