"""Tune a method: Optuna over runs that go on where they were cut, by accuracy on held-out training examples.

    uv run fedfeat-tune experiment=digits_10x3 algorithm=fedprox partition.val_fraction=0.2 --trials 30
    uv run fedfeat-tune experiment=digits_10x3 algorithm=fedprox partition.val_fraction=0.2 --dry-run

Words are overrides as of fedfeat; one with several values, as optimizer.lr=0.01,0.1, is tried instead of fixed. The
same command goes on with a search that was interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfeat.config.command_line import Parser, number, one_sentence
from fedfeat.config.conditions import integer
from fedfeat.config.search_path import quoted
from fedfeat.config.spaces import BASE, SPACES, Space, dimension, space_name, split_words
from fedfeat.errors import ConfigError
from fedfeat.runs.directory import key_of, locked, sets_place

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fedfeat.evidence.study import Asked

_SHOWN = 3
TARGET = "federation.target_metric"
"""Key that is not tried: a method's file names by it what trials are judged by, as for clients' own models."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-tune``.

    It ends with 1 where no trial has succeeded, and with 130 where it was interrupted.
    """
    args = _parser().read(arguments)
    with one_sentence("fedfeat-tune"):
        _check_extra()
        asked, name, notes = read(args)
        folder = args.out or Path("logs") / "tune" / name
        if args.dry_run:
            rehearse(folder, asked, notes, args)
            return
        sys.exit(search(folder, asked, args))


def read(args: argparse.Namespace) -> tuple[Asked, str, list[str]]:
    """Read what is asked for: fixed words and what is tried; the experiment's name; notes on the space.

    Raises:
        ConfigError: Words, a space or both are refused, or nothing is held out for validation.
    """
    from fedfeat.commands.python import accepted, tried
    from fedfeat.evidence.study import Asked

    words = [*args.words]
    if args.config_dir:
        words.append(f"hydra.searchpath=[{quoted(f'file://{args.config_dir.absolute()}')}]")
    for word in words:
        if sets_place(word):
            raise ConfigError.rule(key_of(word), "be left out: runs lie below --out", word.partition("=")[2])
    fixed, swept = split_words(words)
    launcher = [f"hydra/launcher={args.launcher}"] if args.launcher else []
    cfg, config = accepted([*fixed, *launcher])
    if not config["partition"].get("val_fraction"):
        rule = "be above 0 (0.2, say), for trials are compared on examples held out of training and never on test data"
        raise ConfigError.rule("partition.val_fraction", rule, config["partition"].get("val_fraction"))
    for key, text in swept.items():
        if key_of(key) == "seed":
            raise ConfigError.rule("seed", "be one number, which all trials have", text)
    space, notes, judged = _space(cfg, config, fixed, swept)
    fixed += judged
    for end in (0, 1):
        tried([*fixed, *launcher, *(one.word(key, one.ends()[end]) for key, one in space.items())])  # type: ignore[arg-type]
    warmup = config["federation"]["num_rounds"] // 4 if args.warmup is None else args.warmup
    asked = Asked(tuple(fixed), space, int(config["seed"]), args.startup, warmup)
    return asked, str(config["name"]), notes


def _space(
    cfg: DictConfig, config: Mapping[str, Any], fixed: Sequence[str], swept: Mapping[str, str]
) -> tuple[Space, list[str], list[str]]:
    """Put together what a method's file and the command line try, notes, and by what the file has trials judged.

    What is fixed is left out.
    """
    from fedfeat.commands.python import composed

    choices = cfg.hydra.runtime.choices
    name = space_name([choices.get("arm"), config["algorithm"]["name"], choices.get("algorithm")], fixed)
    paths = [word for word in fixed if key_of(word) == "hydra.searchpath"]
    found = composed(paths, f"{SPACES}/{name}")[SPACES]
    of_file = {str(key): str(text) for key, text in found.items() if text is not None}
    notes = [
        f"space: configs/{SPACES}/{name}.yaml"
        + (f" ({config['algorithm']['name']} has none)" if name == BASE else "")
    ]
    set_here = {key_of(word) for word in fixed}
    tried_here = {key_of(key): (key, text) for key, text in swept.items()}
    metric = of_file.pop(TARGET, None)
    judged = [] if TARGET in set_here else _judged(cfg, metric)
    notes += [f"{word}, by which the method is judged" for word in judged]
    for key in [*of_file]:
        if key in tried_here:
            continue
        if key in set_here:
            notes.append(f"{key} is fixed by the command line")
            del of_file[key]
        elif not _may_be_tried(cfg, key):
            notes.append(f"{key} is not tried, for it is not set here")
            del of_file[key]
    # The file's order, in the command line's words, which may begin with ++.
    texts = dict(tried_here.get(key, (key, text)) for key, text in of_file.items()) | dict(swept)
    space = {key: dimension(key, text) for key, text in texts.items()}
    if not space:
        raise ConfigError("The words must leave something to try, but all keys of the space are fixed.")
    return space, notes, judged


def _judged(cfg: DictConfig, metric: str | None) -> list[str]:
    """Give the override for the metric that a method's file names, unless the run has one already."""
    return [] if metric is None or cfg.federation.get("target_metric") else [f"{TARGET}={metric}"]


def _may_be_tried(cfg: DictConfig, key: str) -> bool:
    """Ask whether a key is there and in use: null leaves it to a sibling, or is the default of a method's own key."""
    from omegaconf import OmegaConf

    value = OmegaConf.select(cfg, key, default="absent")
    return value != "absent" and (value is not None or key.startswith("algorithm."))


def rehearse(folder: Path, asked: Asked, notes: Sequence[str], args: argparse.Namespace) -> None:
    """Print the space and the first commands, and start nothing."""
    from rich.console import Console
    from rich.table import Table

    from fedfeat.evidence.processes import command_of
    from fedfeat.evidence.search import Search
    from fedfeat.evidence.study import propose, rehearsed

    console = Console()
    table = Table("key", "tried", box=None, pad_edge=False)
    for key, one in asked.space.items():
        table.add_row(key, str(one))
    console.print(table, markup=False)
    for line in notes:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    search = Search(folder, asked, rehearsed(folder, asked), args.trials, args.launcher)
    print(f"The first of {args.trials} trials, {args.jobs} at a time, below {folder}:")
    for _ in range(min(_SHOWN, args.trials)):
        number = propose(search.study, asked)
        print(
            shlex.join(
                ["fedfeat", *command_of(search.place(number), search.words(number), args.launcher)[3:]]
            )
        )


def search(folder: Path, asked: Asked, args: argparse.Namespace) -> int:
    """Make the trials that are left, and write what they have come to; give the command's exit code."""
    from rich.console import Console
    from rich.live import Live

    from fedfeat.commands.tune_report import conclude, overview
    from fedfeat.evidence.processes import work
    from fedfeat.evidence.search import Search
    from fedfeat.evidence.study import opened

    console = Console()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, ".tune.lock", "--out"):
        found = Search(folder, asked, opened(folder, asked), args.trials, args.launcher)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        shown: set[int] | None = None
        with closing(work(found, args.jobs, args.every, found.look)) as course, Live(console=console) as live:
            try:
                for running in course:
                    if console.is_terminal:
                        live.update(overview(found, [*running], args.jobs))
                    elif shown != {*running}:
                        shown = {*running}
                        console.print(overview(found, [*running], args.jobs))
            except KeyboardInterrupt:
                console.print("Stopping: the runs under way save their round; the same command goes on.")
                conclude(found, console)
                return 130
        return int(not conclude(found, console))


def _check_extra() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("fedfeat-tune must have Optuna, which is not installed (uv sync --extra tune).")


def _parser() -> Parser:
    parser = Parser("fedfeat-tune", __doc__)
    parser.epilog = (
        "The same command goes on with a search that was interrupted. docs/tuning.md has examples."
    )
    parser.add_argument(
        "words", nargs="*", metavar="KEY=VALUE", help="overrides of fedfeat, fixed or with several values"
    )
    parser.add_argument(
        "--trials", type=number(integer(1)), default=20, metavar="N", help="trials in all (%(default)s)"
    )
    parser.add_argument(
        "--jobs", type=number(integer(1)), default=2, metavar="N", help="runs at a time (%(default)s)"
    )
    parser.add_argument(
        "--launcher", metavar="NAME", help="a hydra/launcher for each run, e.g. submitit_slurm"
    )
    parser.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="a folder with options of your own, as of fedfeat"
    )
    _add_looks(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the space and the first commands, and end"
    )
    parser.add_out(None, "logs/tune/NAME of the run")
    return parser


def _add_looks(parser: Parser) -> None:
    parser.add_argument(
        "--startup",
        type=number(integer(0)),
        default=5,
        metavar="N",
        help="trials that end before any is cut short (%(default)s)",
    )
    parser.add_argument(
        "--warmup",
        type=number(integer(0)),
        metavar="ROUNDS",
        help="rounds in which no trial is cut short (a quarter of all)",
    )
    parser.add_looks(1.0, "between two looks at the runs")


if __name__ == "__main__":
    main()
