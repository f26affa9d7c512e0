"""What a report is made of, read once: settings with their names, numbers, the lines of the table, its notes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfeat.commands.report_compared import Compared, compare
from fedfeat.commands.report_figures import AXES
from fedfeat.commands.report_rows import Numbers, aggregate, chosen, known_names, measure, of_own_best, table
from fedfeat.errors import ConfigError
from fedfeat.runs.figures import MAIN_METRIC
from fedfeat.runs.finished import Run
from fedfeat.runs.labels import (
    Naming,
    Setting,
    data_sets,
    group_runs,
    label_settings,
    name_settings,
)
from fedfeat.runs.quantities import Metric, meant

if TYPE_CHECKING:
    import pandas as pd

SPREAD = "Mean ± sample standard deviation over runs; nan: a run has diverged."


@dataclass(frozen=True)
class Gathered:
    """What all forms of a report show.

    Attributes:
        settings: The settings by their names, in the order of the table.
        naming: What the names are made of.
        metrics: What was asked for.
        numbers: What every run measured.
        rows: Mean and spread of every quantity, see `aggregate`.
        lines: The table as text.
        warnings: Sentences that stand above the table.
        explanations: What a reader of the table has to know besides.
        compared: The methods beside each other, by the first metric; None where there are no two in a setting.
    """

    settings: Mapping[str, Setting]
    naming: Naming
    metrics: Sequence[Metric]
    numbers: Numbers
    rows: pd.DataFrame
    lines: pd.DataFrame
    warnings: Sequence[str]
    explanations: Sequence[str]
    compared: Compared | None

    @property
    def notes(self) -> list[str]:
        """All sentences, warnings first."""
        return [*self.warnings, *self.explanations]

    @property
    def groups(self) -> dict[str, Sequence[Run]]:
        """The runs of every setting."""
        return {label: setting.runs for label, setting in self.settings.items()}

    @property
    def columns(self) -> set[str]:
        """All columns of the runs' metrics.csv."""
        return {name for setting in self.settings.values() for run in setting.runs for name in run.metrics}


def gather(
    runs: Sequence[Run],
    asked: Sequence[str] | None = None,
    axes: Collection[str] = (),
    share: float | None = None,
    against: str | None = None,
) -> Gathered:
    """Read what a report shows from finished runs.

    Args:
        runs: The runs.
        asked: Metrics as ``--metric`` takes them.
        axes: Axes as ``--x`` takes them.
        share: Share of a run's own best, as ``--share-of-best`` takes it.
        against: The method that others are compared with, as ``--against`` takes it.

    Raises:
        ConfigError: A metric, key or share is refused.
    """
    found = group_runs(runs)
    naming = name_settings(found)
    ordered = sorted(found, key=naming.order)
    settings = dict(zip(label_settings(ordered, naming), ordered, strict=True))
    groups = {label: setting.runs for label, setting in settings.items()}
    metrics = [Metric.parse(text) for text in asked or [MAIN_METRIC]]
    if share is not None and not 0 < share <= 1:
        raise ConfigError.rule("--share-of-best", "lie in (0, 1]", share)
    more = of_own_best(share)
    numbers = measure(groups, metrics, more)
    _check_metrics(metrics, numbers, asked is not None)
    rows = aggregate(groups, numbers)
    lines = table(groups, rows, metrics, more)
    said = _warnings(settings), _explanations(settings, metrics, numbers, share)
    compared = compare(settings, naming, metrics[0], numbers, against)
    gathered = Gathered(settings, naming, metrics, numbers, rows, lines, *said, compared)
    _check_axes(axes, gathered)
    return gathered


def default_axes(gathered: Gathered) -> list[str]:
    """Choose rounds and costs, for what is there in every round."""
    drawable = all(metric.chosen(gathered.columns) for metric in gathered.metrics)
    return ["round", "bytes", "examples"] if drawable else []


def _check_metrics(metrics: Sequence[Metric], numbers: Numbers, by_hand: bool) -> None:
    """Refuse what names nothing; say of an alternative that no run has it."""
    known = known_names(numbers)
    for metric in metrics:
        missing = [name for name in metric.quantities if name not in known]
        if len(missing) == len(metric.quantities):
            text = f"--metric must name something that the runs have, but it is {missing[0]!r}"
            raise ConfigError(f"{text} ({meant(missing[0], known)}).")
        for name in missing if by_hand else ():
            print(f"--metric: no run has {name} ({meant(name, known)}).", file=sys.stderr)


def _check_axes(axes: Collection[str], gathered: Gathered) -> None:
    keys = {name for setting in gathered.settings.values() for name in (*setting.words, *setting.values)}
    for axis in axes:
        if axis not in AXES and axis not in keys:
            rule = f"be {', '.join(AXES)}, a key or a group of the runs' configurations"
            raise ConfigError(f"--x must {rule}, but it is {axis!r} ({meant(axis, keys | {*AXES})}).")
        for metric in gathered.metrics if axis in AXES else ():
            if metric.chosen(gathered.columns) is None:
                rule = f"be a column of metrics.csv over {axis}"
                raise ConfigError.rule("--metric", rule, metric.name)


def _warnings(settings: Mapping[str, Setting]) -> list[str]:
    data = data_sets(list(settings.values()))
    return [f"Warning: these runs are on different data sets: {', '.join(data)}."] if len(data) > 1 else []


def _explanations(
    settings: Mapping[str, Setting], metrics: Sequence[Metric], numbers: Numbers, share: float | None
) -> list[str]:
    notes = []
    for metric in metrics:
        if metric.has_own_name:
            by = chosen(metric, numbers)
            arms = {
                name: dict.fromkeys(settings[label].words["algorithm"] for label in by if by[label] == name)
                for name in metric.quantities
            }
            parts = [f"{name} of {', '.join(words)}" for name, words in arms.items() if words]
            notes.append(f"{metric.name}: {'; '.join(parts)}.")
    if share is not None:
        notes.append(
            f"to_own_best/{share:g}: the first evaluated round with {share:g} of the maximum over a run's evaluated "
            "rounds, of its federation.target_metric (without one: global/acc, else personal/acc_weighted)."
        )
    return [*notes, SPREAD]
