"""Make runs again, from what is kept of them, and say where their numbers part.

uv run fedfeat-repeat results/runs/digits/digits_fed2/seed_0
uv run fedfeat-repeat results/runs/readings/10x3/trimmed/seed_0 --rounds 2 --with executor=processes

DIR is a run directory, what a campaign has kept of one, or a folder of them, finished or not. Today's code makes each
run with the same overrides, but for those of loggers and of Hydra, and only if they compose to the same configuration.
Ctrl-C and --rounds end it early; the same command goes on with it. Where another processor, number of threads or
version of torch sums in another order, numbers part, from round to round by ever more.
"""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

from omegaconf import OmegaConf

from fedfeat.commands.python import composed
from fedfeat.commands.reopen import add_trust, runs_below
from fedfeat.commands.repeat_text import say
from fedfeat.config.command_line import Parser, number, one_sentence
from fedfeat.config.conditions import integer
from fedfeat.config.explain import as_user_error, explain
from fedfeat.config.trust import NOT_MADE, check_stored
from fedfeat.errors import ConfigError, UserError
from fedfeat.evidence.processes import command_of
from fedfeat.evidence.stored import check_neutral, made_with
from fedfeat.runs.directory import key_of, stored_config
from fedfeat.runs.divergence import has_diverged
from fedfeat.runs.repetition import altered
from fedfeat.runs.tables import METRICS, rows_so_far

_LOOK_S = 0.5


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-repeat``.

    A run that cannot be made again is named, and the others are made. It ends as the first that fails, with 2 for a
    refusal; one that diverges as the kept one did has not failed.
    """
    args = _parser().read(arguments)
    with one_sentence("fedfeat-repeat"):
        check_neutral(args.extra)
        asked, refused = _asked(_runs(args.folders, args.out), args.extra, args.trust)
        if not asked:
            raise refused[0]
    for refusal in refused:
        print(f"fedfeat-repeat: {explain(refusal)} It is left out.", file=sys.stderr)
    stops, failed = list[int](), [2] * len(refused)
    # Of a terminal, Ctrl-C reaches the run itself; here it must only not end the comparison.
    signal.signal(signal.SIGINT, lambda number, _: stops.append(number))
    for folder, words in asked.items():
        place = args.out / _name(folder)
        last = math.inf if args.rounds is None else _compared(folder, args.rounds)
        code = _make(place, words, last, stops)
        # By the time that it ends it may have evaluated more of them.
        if rows := [row for row in rows_so_far(place / METRICS) if int(row["round"]) <= last]:
            say(folder, place, rows)
        if stops:
            raise SystemExit(code or 128 + stops[0])
        if code and not (has_diverged(folder) and has_diverged(place)):
            print(f"fedfeat-repeat: {folder} was not made again.", file=sys.stderr)
            failed.append(code)
    if failed:
        raise SystemExit(failed[0])


def _asked(
    runs: Iterable[Path], extra: Sequence[str], trust: Sequence[str]
) -> tuple[dict[Path, list[str]], list[UserError]]:
    """Give the overrides of runs that can be made again, and why others cannot."""
    asked, refused = dict[Path, list[str]](), list[UserError]()
    for folder in runs:
        try:
            words = [*repeated_words(folder), *extra]
            check_unaltered(folder, words, trust)
        except Exception as error:
            if (refusal := as_user_error(error)) is None:
                raise
            refused.append(refusal)
        else:
            asked[folder] = words
    return asked, refused


def _runs(folders: Sequence[Path], out: Path) -> list[Path]:
    """Give the runs in folders, finished or not, each once; repetitions only where their folder itself is named."""
    own, named = out.resolve(), [folder.resolve() for folder in folders]
    inside = any(folder.is_relative_to(own) for folder in named)
    return [one for one in runs_below(folders, METRICS) if inside or not one.resolve().is_relative_to(own)]


def _compared(folder: Path, rounds: int) -> int:
    """Give the first round from this one on that a kept run has evaluated, or else this one."""
    return next(
        (last for row in rows_so_far(folder / METRICS) if (last := int(row["round"])) >= rounds), rounds
    )


def repeated_words(folder: Path) -> list[str]:
    """Give the overrides with which a run is made again: those of no logger, nor of what it was started by.

    Args:
        folder: A run directory, or what a campaign has kept of one.

    Raises:
        ConfigError: It is none.
    """
    for name in (METRICS, "config.yaml"):
        if not (folder / name).is_file():
            rule = "DIR must be a run directory, or what a campaign has kept of one"
            raise ConfigError(f"{rule}, but {folder} has no {name}.")
    if not rows_so_far(folder / METRICS):
        raise ConfigError(f"DIR must have a round to compare, but {folder / METRICS} has none.")
    return [word for word in made_with(folder) if _is_made(word)]


def _is_made(word: str) -> bool:
    top = key_of(word).replace("/", ".").partition(".")[0]
    # The choice of an executor is one of those that are installed; its keys, or a dictionary, may name anything.
    return top not in NOT_MADE or re.fullmatch(r"executor=\w+", word) is not None


def check_unaltered(folder: Path, words: Sequence[str], trust: Sequence[str] = ()) -> None:
    """Refuse words that compose to another configuration than the run had.

    Args:
        folder: The run.
        words: Its overrides, and others that change no number.
        trust: What the configuration may name beside what everyone's may, see `config.trust`.

    Raises:
        ConfigError: They do, or something is named that nobody has declared.
    """
    everything = cast(dict[str, Any], OmegaConf.to_container(composed(words), resolve=True))
    today = {key: value for key, value in everything.items() if key not in NOT_MADE}
    check_stored(today, trust)
    for key, (then, now) in altered(stored_config(folder), today).items():
        raise ConfigError(f"{key} must be {then!r}, as in {folder}, but it is {now!r}{_made_by(folder)}.")


def _made_by(folder: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        if commit := json.loads((folder / "summary.json").read_text())["git_commit"]:
            return f"; commit {commit} made the run"
    return ""


def _make(place: Path, words: Sequence[str], last: float, stops: list[int]) -> int:
    """Run it until its ``last`` round, or go on with it; give its exit code, which is 0 where it has come so far."""
    run = subprocess.Popen(command_of(place.absolute(), words))

    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(number)
        run.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    is_far = False
    while run.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            run.wait(_LOOK_S)
        if not is_far and _last_round(place) >= last:
            is_far = True
            print(f"Round {last} is evaluated, so the run is ended, as --rounds asks.", flush=True)
            run.send_signal(signal.SIGTERM)
    code = run.returncode if run.returncode >= 0 else 128 - run.returncode
    return 0 if is_far and code == 128 + signal.SIGTERM else code


def _last_round(place: Path) -> int:
    rows = rows_so_far(place / METRICS)
    return int(rows[-1]["round"]) if rows else -1


def _name(folder: Path) -> Path:
    """Give a run's folder below the one of repetitions: its path from here, else its whole path."""
    path = folder.resolve()
    with suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path.relative_to(path.anchor)


def _parser() -> Parser:
    parser = Parser("fedfeat-repeat", __doc__)
    parser.add_folders()
    parser.add_argument(
        "--rounds", type=number(integer(1)), metavar="N", help="end once round N is evaluated"
    )
    parser.add_with()
    parser.add_out(Path("logs/repeated"), "%(default)s")
    add_trust(parser)
    return parser


if __name__ == "__main__":
    main()
