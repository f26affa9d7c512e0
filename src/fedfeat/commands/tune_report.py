"""What a search has come to: table, importance with its picture, and the best trial as words and as a preset."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedfeat.commands.tune_preset import deletions, preset_of
from fedfeat.config.spaces import Interval
from fedfeat.evidence.lengths import Standing
from fedfeat.evidence.progress import duration
from fedfeat.evidence.search import FAILED, Search
from fedfeat.files import atomic_write_text
from fedfeat.runs.text import csv_table, markdown_table

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial
    from rich.console import Console, Group
    from rich.table import Table

    from fedfeat.runs.tune_figure import Tried

FIGURE = "importance"
PRESET = "tuned"
_STATES = {"COMPLETE": "finished", "PRUNED": "cut short", "FAIL": "failed", "RUNNING": "under way"}
_DIVERGED = "diverged"
_ORDER = ("finished", "cut short", _DIVERGED, "failed", "under way")
_SHOWN = 10


def overview(search: Search, running: Sequence[int], at_once: int) -> Group:
    """Draw how many trials there are, the best so far, and those under way with their rounds."""
    from rich.console import Group
    from rich.text import Text

    trials = _known(search)
    standings = {trial.number: search.standing(trial.number) for trial in trials}
    counts = [(name, sum(_state(trial) == name for trial in trials)) for name in _ORDER]
    said = [f"{number} {name}" for name, number in counts if number and name != "under way"]
    lines = [
        f"{', '.join(said) or 'no trial ended'} of {search.trials}, {_left(search, standings, running, at_once)}"
    ]
    best = best_trial(search)
    if best is not None and best.value is not None:
        lines.append(f"best: {best.value:.4f} on validation data, trial {best.number}")
    for number in running:
        found = standings.get(number)
        where = f"round {found.round_idx}/{found.num_rounds}" if found else "begins"
        lines.append(f"trial {number} {where}  {' '.join(search.words(number)[len(search.asked.words) :])}")
    return Group(*map(Text, lines))


def _left(
    search: Search, standings: Mapping[int, Standing | None], running: Sequence[int], at_once: int
) -> str:
    wholes = [whole for one in standings.values() if one and (whole := one.whole())]
    if not wholes:
        return "unknown time left"
    ended = sum(trial.state.is_finished() for trial in _known(search))
    mean = sum(wholes) / len(wholes)
    spent = sum(one.seconds for number in running if (one := standings.get(number)))
    return f"{duration(max(0.0, (search.trials - ended) * mean - spent) / at_once)} left at most"


def best_trial(search: Search) -> FrozenTrial | None:
    """Give the finished trial with the highest accuracy, the first among equals."""
    finished = [trial for trial in _known(search) if _state(trial) == "finished"]
    return max(finished, key=lambda trial: trial.value or 0.0, default=None)


def importance(search: Search) -> dict[str, float]:
    """Give the share of each key in how accuracy varies among finished trials; nothing where that is unknown."""
    import optuna

    finished = [trial for trial in _known(search) if trial.state.name == "COMPLETE"]
    if len(finished) < 2 or len({trial.value for trial in finished}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=search.asked.seed)
    found = optuna.importance.get_param_importances(search.study, evaluator=evaluator)
    return {key: float(share) for key, share in found.items()}


def conclude(search: Search, console: Console) -> bool:
    """Write and print what a search has come to; whether there is a best trial."""
    shares, best = importance(search), best_trial(search)
    written = [search.folder / "trials.csv", search.folder / "trials.md"]
    atomic_write_text(written[0], _csv(search))
    atomic_write_text(written[1], markdown_table(*_cells(search, len(_known(search)))))
    console.print(_table(*_cells(search, _SHOWN)), markup=False)
    for trial in _known(search):
        if FAILED in trial.user_attrs:
            console.print(f"trial {trial.number}: {trial.user_attrs[FAILED]}", soft_wrap=True, markup=False)
    if search.gave_up:
        print(
            "No other trial is begun, for none has succeeded and too many have failed; the same command goes on."
        )
    if best is None:
        return False
    written += draw(search, shares)
    if shares:
        rows = [[key, f"{share:.2f}"] for key, share in shares.items()]
        console.print(_table(["key", "importance"], rows), markup=False)
    else:
        console.print("Importance needs two finished trials of different accuracy.")
    words = [word for word in search.words(best.number) if not word.startswith("hydra.launcher.")]
    presets = search.folder / "conf"
    written.append(presets / "experiment" / f"{PRESET}.yaml")
    atomic_write_text(
        written[-1], preset_of(words, f"Trial {best.number}: {best.value:.4f} on validation data.")
    )
    for path in written:
        console.print(str(path), soft_wrap=True, highlight=False, markup=False)
    print(f"best, by validation data, is trial {best.number} with {best.value:.4f}; for a run of it:")
    print(f"  uv run fedfeat {shlex.join(words)}")
    beside = [*(word for word in words if word.startswith("hydra.searchpath")), *deletions(words)]
    print(f"  uv run fedfeat {shlex.join(['--config-dir', str(presets), f'experiment={PRESET}', *beside])}")
    return True


def draw(search: Search, shares: dict[str, float]) -> list[Any]:
    """Draw the picture; give its paths."""
    from fedfeat.runs.figures import save_figure
    from fedfeat.runs.tune_figure import tune_figure

    trials = [trial for trial in _known(search) if _score(trial) is not None]
    tried = {key: _tried(search, key, trials) for key in shares or search.asked.space}
    scores, cut = (
        [_score(trial) or 0.0 for trial in trials],
        [trial.state.name == "PRUNED" for trial in trials],
    )
    title = (
        f"{search.folder.absolute().name}: {cut.count(False)} finished trials, {cut.count(True)} cut short"
    )
    figure = tune_figure(shares, tried, scores, cut, title)
    paths = [search.folder / f"{FIGURE}.{ending}" for ending in ("png", "pdf", "svg")]
    for path in paths:
        save_figure(figure, path)
    return paths[:1]


def _tried(search: Search, key: str, trials: Sequence[FrozenTrial]) -> Tried:
    from fedfeat.runs.tune_figure import Tried

    one = search.asked.space[key]
    values = [trial.params[key] for trial in trials]
    if isinstance(one, Interval):
        return Tried(values, log=one.log)
    return Tried(values, choices=one.texts)


def _state(trial: FrozenTrial) -> str:
    """Say what has become of a trial; Optuna is told of one that diverged as of one that finished with 0."""
    is_told = trial.state.name == "COMPLETE" and FAILED in trial.user_attrs
    return _DIVERGED if is_told else _STATES[trial.state.name]


def _score(trial: FrozenTrial) -> float | None:
    if trial.state.name == "COMPLETE":
        return trial.value
    return trial.intermediate_values.get(trial.last_step or 0) if trial.state.name == "PRUNED" else None


def _known(search: Search) -> list[FrozenTrial]:
    """List the trials that were proposed whole."""
    keys = search.asked.space.keys()
    return [trial for trial in search.study.get_trials(deepcopy=False) if trial.params.keys() == keys]


def _cells(search: Search, most: int) -> tuple[list[str], list[list[str]]]:
    """Give the header and the best trials, finished ones first."""
    ordered = sorted(
        _known(search), key=lambda one: (_ORDER.index(_state(one)), -(_score(one) or 0.0), one.number)
    )
    rows = []
    for trial in ordered[:most]:
        values = [one.word("", trial.params[key])[1:] for key, one in search.asked.space.items()]
        score = _score(trial)
        state = _state(trial) + (f", round {trial.last_step}" if trial.state.name == "PRUNED" else "")
        rows.append([str(trial.number), "" if score is None else f"{score:.4f}", *values, state])
    return ["trial", "val acc", *search.asked.space, "state"], rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Column, Table

    table = Table(
        *(Column(name.replace(".", ".\n"), overflow="fold") for name in header), box=None, pad_edge=False
    )
    for row in rows:
        table.add_row(*row)
    return table


def _csv(search: Search) -> str:
    """Write all trials in their order, with their words' values."""
    header, rows = _cells(search, len(_known(search)))
    return csv_table([["trial", "val_acc", *header[2:]], *sorted(rows, key=lambda row: int(row[0]))])
