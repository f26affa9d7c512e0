"""Numbers of several seeds as the pages write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedfeat.evidence.association import Association
from fedfeat.evidence.intervals import LEVEL, Interval, Needed, mean_interval
from fedfeat.runs.text import markdown_table

NONE = "-"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table, or that it has no rows yet."""
    return markdown_table(header, rows) if rows else "No run is finished yet.\n"


def found_text(found: Interval | Association | None, quantity: str = "") -> str:
    """Write what a rule is about, or that there is nothing of it yet."""
    if found is None:
        return "not yet"
    if isinstance(found, Association):
        return association_text(found)
    return interval_text(found, quantity)


def interval_text(found: Interval, quantity: str = "") -> str:
    """Write ``mean [low, high]`` and the number of seeds; see `mean_text` for places and units.

    One seed has no interval. More that have none are those of a target at which no run of both arms ever was.
    """
    seeds = f"{found.num_seeds} seed{'s' if found.num_seeds > 1 else ''}"
    if math.isnan(found.mean):
        return f"a run diverged ({seeds})"
    scale, unit = _unit(quantity)
    mean, low, high = (value / scale for value in found[:3])
    if not math.isfinite(low) and not math.isfinite(high):
        if found.num_seeds > 1:
            return f"neither came there ({seeds})"
        return f"{number(mean, quantity=quantity)}{unit} ({seeds})"
    digits = _places(mean, (high - low) / 2, quantity)
    return f"{number(mean, digits)} [{number(low, digits)}, {number(high, digits)}]{unit} ({seeds})"


def levels_text(numbers: Sequence[Mapping[int, float]], quantity: str = "") -> str:
    """Write ``mean against mean`` of two arms over the seeds that both have.

    A mean in which a run never came to a target is the least that it can be, and says so.

    Args:
        numbers: Of both by seed.
        quantity: What they are.
    """
    common = numbers[0].keys() & numbers[1].keys()
    return " against ".join(_level([one[seed] for seed in sorted(common)], quantity) for one in numbers)


def _level(values: Sequence[float], quantity: str) -> str:
    scale, _ = _unit(quantity)
    least = "≥" if any(isinstance(value, Needed) and value.never for value in values) else ""
    mean = sum(values) / len(values) / scale
    return "diverged" if math.isnan(mean) else f"{least}{number(mean, quantity=quantity)}"


def mean_text(values: Mapping[int, float], quantity: str = "", step: float = 0.0) -> str:
    """Write ``mean ± half of the interval`` of values by seed, and their number where it is not three.

    Places are enough for a digit of the half; bytes stand in MB. Where some seeds never came to a target there is no
    mean: how many they are stands instead. Runs that have diverged, whose value is NaN, are counted beside the mean of
    the others.

    Args:
        values: By seed.
        quantity: What they are.
        step: How well each of them is known: it is uniform in a step of this size.
    """
    kept = [value for value in values.values() if not math.isnan(value)]
    lost = f"{len(values) - len(kept)} diverged" if len(kept) < len(values) else ""
    return ", ".join(text for text in (_mean_text(kept, quantity, step), lost) if text) or NONE


def _mean_text(values: Sequence[float], quantity: str, step: float) -> str:
    if not values:
        return ""
    never = values.count(math.inf)
    if 0 < never < len(values):
        return f"not reached in {never} of {len(values)}"
    scale, unit = _unit(quantity)
    found = mean_interval([value / scale for value in values], (step / scale) ** 2 / 12)
    half = (found.high - found.low) / 2
    if math.isfinite(half):
        digits = _places(found.mean, half, quantity)
        text = f"{number(found.mean, digits)} ± {number(half, digits)}{unit}"
    else:
        text = number(found.mean, quantity=quantity) + (unit if math.isfinite(found.mean) else "")
    return text if found.num_seeds == 3 else f"{text} ({found.num_seeds})"


def association_text(found: Association) -> str:
    """Write ``rho (p, number of arms)`` of a rank correlation; of too few arms there is none."""
    if math.isnan(found.rho):
        return NONE
    return f"{number(found.rho)} (p {number(found.p_value)}, {found.num_arms} arms)"


def apart_text(gaps: Sequence[float]) -> str:
    """Write the size of differences that are chance, and the half of an interval of three seeds that it makes.

    Args:
        gaps: The differences, whose true mean is 0.
    """
    from scipy import stats

    if not gaps:
        return "No run is finished yet.\n"
    size = math.sqrt(sum(gap**2 for gap in gaps) / len(gaps))
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(gaps))) * size / math.sqrt(3)
    return (
        f"{number(size)} from seed to seed (root of the mean square of {len(gaps)}); "
        f"{number(half)} in a mean of three seeds (half a 95 % interval).\n"
    )


def number(value: float, places: int | None = None, quantity: str = "") -> str:
    """Write a number; without ``places`` a share has three of them, what is counted, by its size or its name, one."""
    if not math.isfinite(value):
        return "not reached" if value == math.inf else str(value)
    digits = _places(value, quantity=quantity) if places is None else places
    return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no sign before zero


def _places(mean: float, half: float = 0.0, quantity: str = "") -> int:
    is_counted = abs(mean) >= 2 or quantity.endswith("/rounds")
    least = 1 if is_counted else 3
    # A half below this is that of equal numbers, by rounding.
    return max(least, -math.floor(math.log10(half))) if half > 1e-6 * max(abs(mean), 1) else least


def _unit(quantity: str) -> tuple[float, str]:
    return (1e6, " MB") if quantity.endswith("bytes") else (1.0, "")
