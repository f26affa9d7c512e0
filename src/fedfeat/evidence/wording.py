"""Numbers of several seeds as the pages write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedfeat.evidence.association import Association
from fedfeat.evidence.intervals import Interval, mean_interval
from fedfeat.runs.text import markdown_table

NONE = "-"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table, or that it has no rows yet."""
    return markdown_table(header, rows) if rows else "No run is finished yet.\n"


def interval_text(found: Interval) -> str:
    """Write ``mean [low, high]`` and the number of seeds."""
    seeds = f"{found.num_seeds} seed{'s' if found.num_seeds > 1 else ''}"
    if not math.isfinite(found.low) and not math.isfinite(found.high):
        return f"{number(found.mean)} ({seeds})"
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}] ({seeds})"


def mean_text(values: Mapping[int, float]) -> str:
    """Write ``mean ± half of the interval`` of values by seed, and their number where it is not three.

    Where some seeds never came to a target there is no mean: how many they are stands instead.
    """
    if not values:
        return NONE
    never = [*values.values()].count(math.inf)
    if 0 < never < len(values):
        return f"never in {never} of {len(values)}"
    found = mean_interval([*values.values()])
    half = (found.high - found.low) / 2
    text = f"{number(found.mean)} ± {number(half)}" if math.isfinite(half) else number(found.mean)
    return text if found.num_seeds == 3 else f"{text} ({found.num_seeds})"


def association_text(found: Association) -> str:
    """Write ``rho (p, number of arms)`` of a rank correlation; of too few arms there is none."""
    if math.isnan(found.rho):
        return NONE
    return f"{number(found.rho)} (p {number(found.p_value)}, {found.num_arms} arms)"


def number(value: float) -> str:
    """Write a share with three places, what is counted with one."""
    if not math.isfinite(value):
        return "never" if value == math.inf else str(value)
    return f"{value:.3f}" if abs(value) < 2 else f"{value:.1f}"
