"""The figures of a report: curves over rounds or costs, and quantities over a swept key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfeat.commands.report_rows import Numbers, chosen, known_names
from fedfeat.config.objective import COSTS
from fedfeat.errors import ConfigError
from fedfeat.runs.figures import convergence, save_figure
from fedfeat.runs.labels import Naming, Setting
from fedfeat.runs.quantities import Metric
from fedfeat.runs.sweep_figure import Point, Quantity, sweep_figure
from fedfeat.runs.text import is_number, written

AXES = {"round": COSTS["rounds"]} | {name: COSTS[name] for name in ("bytes", "examples", "seconds")}
FORMATS = ("png", "pdf", "svg")


def draw(
    axis: str,
    settings: Mapping[str, Setting],
    naming: Naming,
    metrics: Sequence[Metric],
    numbers: Numbers,
    bars: bool,
    out: Path,
) -> dict[str, str]:
    """Draw metrics over an axis and write the figure in all forms; give file names without ending, with what they show.

    Two metrics stand in one figure, on two axes; each of more in one of its own.
    """
    known = known_names(numbers)
    names = dict[str, str]()
    for group in [metrics] if len(metrics) <= 2 else [[metric] for metric in metrics]:
        stem = f"curves_{axis}" if axis in AXES else f"over_{axis}".replace("/", "_")
        if len(metrics) > 2:
            stem += "_" + group[0].name.replace("/", "_").replace(" ", "_")
            stem += f"_{len(names)}" if stem in names else ""
        if axis in AXES:
            curves = {label: [run.metrics for run in setting.runs] for label, setting in settings.items()}
            figure = convergence(curves, AXES[axis], group[0], beside=group[1] if len(group) > 1 else None)
        else:
            found = [along(axis, settings, naming, metric, numbers) for metric in group]
            figure = sweep_figure(axis, found, bars)
        for form in FORMATS:
            save_figure(figure, out / f"{stem}.{form}")
        names[stem] = f"{' and '.join(metric.heading(known) for metric in group)} over {axis}"
    return names


def along(
    key: str, settings: Mapping[str, Setting], naming: Naming, metric: Metric, numbers: Numbers
) -> Quantity:
    """Put settings that differ in a key only on one curve; one without the key is a level.

    A key that follows from this one, as the number of rounds where the work is the same in all, makes no curves of its
    own: its values stand in the curve's name.
    """
    having = {label: setting for label, setting in settings.items() if key in setting}
    apart = [name for name in (*naming.words, *naming.keys) if name != key]
    followers = []
    for name in [name for name in naming.keys if name != key]:
        others = [other for other in apart if other != name]
        rows = [tuple(_hashable(one.get(other)) for other in (key, *others)) for one in having.values()]
        full = [(*row, _hashable(one.get(name))) for row, one in zip(rows, having.values(), strict=True)]
        if len({row[0] for row in rows}) > 1 and len(set(rows)) == len(set(full)):
            apart.remove(name)
            followers.append(name)
    keys = [name for name in naming.keys if name in apart]
    rest = f"no {', '.join(keys)}" if keys else "all runs"
    picked = chosen(metric, numbers)
    curves, levels = dict[str, dict[Any, Point]](), dict[str, Point]()
    by = dict[str, dict[str, list[str]]]()
    for label, setting in settings.items():
        if label in picked:
            point = _point(numbers[label], picked[label])
            name = label
            if key in setting:
                short = naming.label(setting, {key, *followers}) or rest
                name = _with_followers(short, key, followers, naming, having.values())
                place = _hashable(setting.get(key))
                if place in curves.get(name, {}):
                    name = label  # nothing of their names tells the two apart
                curves.setdefault(name, {})[place] = point
            else:
                levels[label] = point
            by.setdefault(name, {}).setdefault(picked[label], []).append(written(setting.get(key)))
    if not curves:
        raise ConfigError(
            f"--metric must name what settings with {key} have, but none of them has {metric.name}."
        )
    texts = {name: _in_words(places) for name, places in by.items()}
    return Quantity(metric, curves, levels, texts, frozenset(picked.values()))


def _in_words(places: Mapping[str, Sequence[str]]) -> str:
    """Say which quantity a curve shows, and where if it shows several."""
    if len(places) == 1:
        return next(iter(places))
    return "; ".join(f"{name} at {', '.join(values)}" for name, values in places.items())


def _with_followers(short: str, key: str, followers: Sequence[str], naming: Naming, settings: Any) -> str:
    family = [s for s in settings if (naming.label(s, {key, *followers}) or short) == short]
    parts = []
    for name in followers:
        values = list(dict.fromkeys(written(setting.get(name)) for setting in family if name in setting))
        parts += (
            [f"{name}={values[0]}" if len(values) == 1 else f"{name} {', '.join(values)}"] if values else []
        )
    return f"{short} ({'; '.join(parts)})" if parts else short


def _point(runs: Sequence[Mapping[str, float]], name: str) -> Point:
    return Point(tuple(found[name] for found in runs if name in found), len(runs))


def _hashable(value: Any) -> Any:
    """Give a number as it is and everything else as text."""
    return value if is_number(value) else written(value)
