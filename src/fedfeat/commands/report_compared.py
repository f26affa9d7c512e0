"""The comparison of methods in a report: what is a method and what a setting, the tables as text, what is not said."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfeat.commands.report_rows import Numbers, chosen, write_number
from fedfeat.config.objective import more_is_better
from fedfeat.errors import ConfigError
from fedfeat.evidence.comparison import Pair, Rank, complete, pairs, ranks, smallest_p
from fedfeat.evidence.intervals import LEVEL
from fedfeat.evidence.rules import MIN_SEEDS
from fedfeat.runs.labels import Naming, Setting
from fedfeat.runs.quantities import Metric, is_target, meant

if TYPE_CHECKING:
    import pandas as pd

_PROBLEM = ("data", "public", "partition", "model", "scenario", "pool", "federation")
"""Sections of the configuration that say what is to be solved; all others are the method's."""
_DEFAULT = "fedavg"


@dataclass(frozen=True)
class Compared:
    """Methods beside each other by one metric.

    Attributes:
        heading: What is compared.
        metric: The metric's name.
        against: The method that all others are compared with.
        pairs: The differences, of each setting and method.
        ranks: The mean ranks over settings; none where there are fewer than two settings.
        notes: How to read both, and what was refused.
    """

    heading: str
    metric: str
    against: str
    pairs: Sequence[Pair]
    ranks: Sequence[Rank]
    notes: Sequence[str]

    def pair_lines(self) -> pd.DataFrame:
        """Lay the differences out as text."""
        import pandas as pd

        several = len({pair.setting for pair in self.pairs}) > 1
        return pd.DataFrame(
            [
                ({"setting": pair.setting or "all"} if several else {})
                | {
                    "method": pair.method,
                    f"less {self.against}": self._mean(pair),
                    f"{LEVEL:.0%} interval": self._interval(pair),
                    "better in": f"{pair.ahead} of {pair.interval.num_seeds} seeds",
                }
                for pair in self.pairs
            ]
        )

    def rank_lines(self) -> pd.DataFrame:
        """Lay the ranks out as text."""
        import pandas as pd

        tested = any(rank.p_value is not None for rank in self.ranks)
        name = f"p against {self.against}"
        return pd.DataFrame(
            [
                {"method": rank.method, "mean rank": f"{rank.mean:.2f}"}
                | ({name: "-" if rank.p_value is None else f"{rank.p_value:.2g}"} if tested else {})
                for rank in self.ranks
            ]
        )

    def _mean(self, pair: Pair) -> str:
        mean, low, _, _ = pair.interval
        return "-" if math.isnan(mean) and not math.isnan(low) else write_number(self.metric, mean, sign=True)

    def _interval(self, pair: Pair) -> str:
        ends = pair.interval.low, pair.interval.high
        if not all(map(math.isfinite, ends)):
            return "-"
        return f"[{', '.join(write_number(self.metric, end, sign=True) for end in ends)}]"


def compare(
    settings: Mapping[str, Setting], naming: Naming, metric: Metric, numbers: Numbers, against: str | None
) -> Compared | None:
    """Set methods beside each other by a metric; None where no setting has two of them.

    Args:
        settings: The settings of the report.
        naming: What their names are made of.
        metric: The metric.
        numbers: What every run measured.
        against: A method's name; None is FedAvg, without it that of most settings.

    Raises:
        ConfigError: There is no such method, or it has run alone.
    """
    table = _by_problem(settings, naming, metric, numbers)
    methods = [*dict.fromkeys(method for found in table.values() for method in found)]
    if against is not None and against not in methods:
        text = f"--against must be a method of the comparison, but it is {against!r}"
        raise ConfigError(f"{text} ({meant(against, methods)}).")
    table = {problem: found for problem, found in table.items() if len(found) > 1}
    if not table:
        return None
    together = [*dict.fromkeys(method for found in table.values() for method in found)]
    if against is not None and against not in together:
        rule = "have run in a setting of another method"
        raise ConfigError.rule("--against", rule, against, together)
    often = {method: sum(method in found for found in table.values()) for method in together}
    default = next((method for method in together if method.split(", ")[0] == _DEFAULT), None)
    other = against or default or max(often, key=lambda method: often[method])
    high = more_is_better(metric.quantities[0])
    found = pairs(table, other, high)
    means = complete(table)
    ranked = ranks(means, other, high) if len(means) > 1 else []
    notes = [
        *_of_quantities(settings, chosen(metric, numbers)),
        *_of_pairs(found, table, other),
        *_of_never(table),
        *_of_ranks(ranked, len(means), len(table), other),
    ]
    shown = metric.heading({*chosen(metric, numbers).values()})
    return Compared(f"Methods compared by {shown}", shown, other, found, ranked, notes)


def _by_problem(
    settings: Mapping[str, Setting], naming: Naming, metric: Metric, numbers: Numbers
) -> dict[str, dict[str, dict[int, float]]]:
    """Sort the numbers by setting and method; a method has the shortest name that is its own in every setting."""
    parts = {*naming.words, *naming.keys}
    problem_parts = {name for name in parts if re.split(r"[./@]", name)[0] in _PROBLEM}
    picked = chosen(metric, numbers)
    problems = {label: naming.label(settings[label], parts - problem_parts) for label in picked}
    names = {label: label for label in picked}
    for left_out in (problem_parts, problem_parts | {*naming.keys}):
        found = {label: naming.label(settings[label], left_out) for label in picked}
        if len({(problems[label], found[label]) for label in picked}) == len(picked):
            names = found
    table = dict[str, dict[str, dict[int, float]]]()
    for label, name in picked.items():
        measured = zip(settings[label].runs, numbers[label], strict=True)
        values = {
            run.summary["seed"]: found.get(name, math.inf)
            for run, found in measured
            if name in found or is_target(name, run)
        }
        table.setdefault(problems[label], {})[names[label]] = values
    return table


def _of_quantities(settings: Mapping[str, Setting], picked: Mapping[str, str]) -> list[str]:
    """Say by what methods are compared, where that is not the same for all."""
    by = {name: dict[str, None]() for name in picked.values()}
    for label, name in picked.items():
        by[name][settings[label].words["algorithm"]] = None
    parts = [f"{name} of {', '.join(methods)}" for name, methods in by.items()]
    return [f"Not all are compared by the same quantity: {'; '.join(parts)}."] if len(by) > 1 else []


def _of_never(table: Mapping[str, Mapping[str, Mapping[int, float]]]) -> list[str]:
    """Say which methods never came to their target in some of their runs."""
    numbers = [(method, values.values()) for found in table.values() for method, values in found.items()]
    lost = [(method, [*values].count(math.inf), len(values)) for method, values in numbers]
    texts = [f"{method} in {never} of {count} runs" for method, never, count in lost if never]
    rule = "a seed in which neither of two came there is in no difference; no mean where each was there alone once"
    return [f"Infinite where a run never came there ({rule}): {'; '.join(texts)}."] if texts else []


def _of_pairs(found: Sequence[Pair], table: Mapping[str, Mapping[str, object]], against: str) -> list[str]:
    paired = (
        "Differences are paired by seed, of which the split is common, and the first weights of one network;"
    )
    few = [pair for pair in found if pair.interval.num_seeds < MIN_SEEDS]
    if len(few) == len(found):
        notes = [f"{paired} an interval takes {MIN_SEEDS} common seeds, and no pair has as many."]
    else:
        student = (
            f"the interval is Student's t, each by itself at {LEVEL:.0%}: of twenty, one misses by chance."
        )
        notes = [f"{paired} {student}"]
    if 0 < len(few) < len(found):
        notes.append(
            f"No interval is given of fewer than {MIN_SEEDS} common seeds: {len(few)} of {len(found)} pairs do not "
            "have as many."
        )
    if without := [problem for problem, methods in table.items() if against not in methods]:
        notes.append(
            f"{against} did not run in {len(without)} of {len(table)} settings, which have no differences."
        )
    return notes


def _of_ranks(ranked: Sequence[Rank], num_complete: int, num_settings: int, against: str) -> list[str]:
    if num_settings == 1:
        return []  # where nobody looks for ranks
    if not ranked:
        how = f"there {'is' if num_complete == 1 else 'are'} {num_complete or 'none'}"
        return [f"Ranks over settings need at least two settings in which all methods ran; {how}."]
    left = num_settings - num_complete
    notes = [
        f"Mean rank over {num_complete} settings, 1 is the best, by means over the seeds that all methods have there"
        + (f"; {left} settings lack a method and are left out." if left else ".")
    ]
    least = smallest_p(num_complete, len(ranked) - 1)
    if least > 1 - LEVEL + 1e-12:
        return [
            *notes,
            f"No significance is given: with {num_complete} settings and {len(ranked)} methods the smallest p that the "
            f"test can have is {least:.2g}, above {1 - LEVEL:.2g}.",
        ]
    return [
        *notes,
        f"p is that of Wilcoxon's signed-rank test over settings against {against}, corrected by Holm's.",
    ]
