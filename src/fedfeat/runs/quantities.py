"""What a run measured, by names that a report takes: its metrics at the end, means, costs of reaching something."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from fedfeat.config.objective import COSTS, judged_by
from fedfeat.errors import ConfigError
from fedfeat.runs.finished import Run
from fedfeat.runs.metrics_table import last_value, not_finite_since
from fedfeat.runs.text import flatten, is_number

_LAST = re.compile(r"last([1-9]\d*)/(.+)")
_OWN_BEST, _TARGET = (
    re.compile(rf"{kind}/(0?\.\d+|1(?:\.0*)?)/({'|'.join(COSTS)})") for kind in ("to_own_best", "to_target")
)
_WITHIN = re.compile(rf"within/({'|'.join(COSTS)})/(\d+(?:\.\d*)?(?:e\+?\d+)?)/(.+)")


class Metric(NamedTuple):
    """What is asked of every run: the first of some quantities that it has, under a name.

    Attributes:
        name: What to call it.
        quantities: The quantities, the wanted one first.
    """

    name: str
    quantities: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Read ``[NAME=]QUANTITY[,QUANTITY...]``.

        Raises:
            ConfigError: A part is empty.
        """
        name, _, listed = text.rpartition("=")
        quantities = tuple(part.strip() for part in listed.split(","))
        if not all(quantities):
            raise ConfigError.rule("--metric", "be names of quantities with commas between them", text)
        return cls(name.strip() or " or ".join(quantities), quantities)

    @property
    def has_own_name(self) -> bool:
        """Whether it is called otherwise than its quantities."""
        return self.name != " or ".join(self.quantities)

    def heading(self, known: Collection[str]) -> str:
        """Name what is shown of it: its own name, or those of its quantities that are among the known ones."""
        return (
            self.name if self.has_own_name else " or ".join(name for name in self.quantities if name in known)
        )

    def chosen(self, known: Collection[str]) -> str | None:
        """Give the first of the quantities that is among the known ones."""
        return next((name for name in self.quantities if name in known), None)


def measured_numbers(run: Run, wanted: Iterable[str] = ()) -> dict[str, float]:
    """Give what a run measured, by quantity; NaN is a number here: that of a run which has diverged.

    A metric by its name is its value in the last round, or in the last in which it was measured; ``best_val/<metric>``
    that of the round which is best on validation data, ``to_target/<accuracy>/<cost>`` what reaching it took.

    Args:
        run: The run.
        wanted: Further quantities, if it has them: ``last<N>/<metric>``, the mean over the last N evaluated rounds
            (docs/methods.md takes N = 10 for the accuracy at convergence), ``within/<cost>/<amount>/<metric>``, its
            value in the last evaluated round that has cost no more, ``to_own_best/<share>/<cost>``, and ``to_target``
            of an accuracy that is none of the run's own targets. Those that a paper published are always among them.
    """
    summary = run.summary
    kept = {"to_target": summary.get("to_target") or {}, "best_val": summary.get("best_val") or {}}
    found = {**run.last_values, **flatten({**(summary.get("final") or {}), **kept})}
    numbers = {name: number for name, value in found.items() if (number := _number(value)) is not None}
    for name in (*run.published, *wanted):
        if name not in numbers and (number := _computed(run, name)) is not None:
            numbers[name] = number
    return numbers


def share_of_best(run: Run, share: float) -> dict[str, float]:
    """Give what a run needed to come to a share of its own best: by cost, as of its first evaluated round with so much.

    The metric is that of its targets (``federation.target_metric``; without it ``global/acc``, else
    ``personal/acc_weighted``), its best the maximum over the evaluated rounds. It is a measure of speed: of the run's
    own curve, whatever data that is measured on. NaN where no value is finite.
    """
    name = _judged_by(run)
    if name is None:
        return {}
    values = run.metrics[name].to_numpy(float)
    finite = np.isfinite(values)
    columns = {cost: column for cost, column in COSTS.items() if column in run.metrics}
    if not finite.any():
        return dict.fromkeys(columns, float("nan")) if not_finite_since(run.metrics, name) is not None else {}
    at = int(np.argmax(finite & (values >= share * values[finite].max())))
    return {cost: float(run.metrics[column].iloc[at]) for cost, column in columns.items()}


def is_target(quantity: str, run: Run) -> bool:
    """Whether a quantity is what reaching an accuracy took, and the run measured what that is asked of."""
    found = _TARGET.fullmatch(quantity)
    return found is not None and _judged_by(run) is not None and COSTS[found[2]] in run.metrics


def is_computed(name: str) -> bool:
    """Whether a name is that of a quantity which is computed when it is asked for."""
    return any(form.fullmatch(name) for form in (_LAST, _WITHIN, _OWN_BEST, _TARGET))


def meant(name: str, known: Iterable[str]) -> str:
    """Give a half-sentence with the known names most like an unknown one, or with all where none is like it."""
    names = sorted(set(known))
    # Whoever misses the folder of a name has its end right.
    ends = [other for other in names if other.rpartition("/")[2] == name or other.rpartition(".")[2] == name]
    near = [*dict.fromkeys([*ends, *difflib.get_close_matches(name, names, n=3, cutoff=0.6)])][:3]
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names) or 'none'}"


def _computed(run: Run, name: str) -> float | None:
    if found := _LAST.fullmatch(name):
        number, metric = int(found[1]), found[2]
        if metric not in run.metrics or len(run.metrics) < number:
            return None
        last = run.metrics[metric].to_numpy(float)[-number:]
        diverged = not_finite_since(run.metrics, metric) is not None
        return float(last.mean()) if diverged or np.isfinite(last).all() else None
    if found := _WITHIN.fullmatch(name):
        return _within(run, COSTS[found[1]], float(found[2]), found[3])
    if found := _OWN_BEST.fullmatch(name):
        return share_of_best(run, float(found[1])).get(found[2])
    # Of its own targets a run says itself whether it reached them.
    own = run.summary.get("to_target") or {}
    if (found := _TARGET.fullmatch(name)) and found[1] not in own and is_target(name, run):
        return _reached(run, float(found[1]), COSTS[found[2]])
    return None


def _judged_by(run: Run) -> str | None:
    return judged_by(list(run.metrics), run.setting.get("federation.target_metric"))


def _reached(run: Run, target: float, column: str) -> float | None:
    """Give a cost as of the first evaluated round at an accuracy; None where none is."""
    values = run.metrics[_judged_by(run)].to_numpy(float)
    at = np.flatnonzero(np.isfinite(values) & (values >= target))
    return float(run.metrics[column].iloc[at[0]]) if len(at) else None


def _within(run: Run, column: str, amount: float, metric: str) -> float | None:
    if metric not in run.metrics or column not in run.metrics:
        return None
    return last_value(run.metrics[run.metrics[column] <= amount], metric)


def _number(value: Any) -> float | None:
    """Read a number of a summary, in which ``nan`` may be a word."""
    if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if is_number(value) else None
