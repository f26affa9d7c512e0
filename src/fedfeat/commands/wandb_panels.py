"""Panels of W&B: curves by method with a band over seeds, alignment, clients, pictures, published beside measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedfeat.runs.run_words import COST_METRICS

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2.interface import PanelTypes

AXES = {
    "round": "round",
    "comm/total_bytes": "bytes sent and received",
    "compute/examples": "training examples",
}
"""The x-axes of curves, and what to write below them."""
PUBLISHED = "Published and measured"
"""Name of the section with papers' numbers."""
_MOST_RUNS = 500


@dataclass(frozen=True)
class Shown:
    """What is to be seen.

    Attributes:
        metrics: Names of metrics.
        by: The fact, or dotted key below ``config``, of which each value is a curve (`runs.run_words`).
    """

    metrics: Sequence[str]
    by: str = "method"


def sections(shown: Shown) -> dict[str, list[PanelTypes]]:
    """Give all panels by the name of their section."""
    return {
        "Accuracy over rounds, bytes and examples": curves(shown),
        "Clients": clients(shown),
        "Alignment": alignment(shown),
        "Cost": costs(shown),
        PUBLISHED: published(shown),
        "Pictures": pictures(),
    }


def curves(shown: Shown) -> list[PanelTypes]:
    """Draw every metric over every axis: the mean of the runs with a band of one standard deviation."""
    return [_curve(name, axis, shown) for name in shown.metrics for axis in AXES]


def clients(shown: Shown) -> list[PanelTypes]:
    """Draw the worst clients, and show the table of the last round."""
    import wandb_workspaces.reports.v2 as wr

    names = ("global/client_acc_worst", "personal/acc_worst")
    table = wr.WeavePanelSummaryTable(table_name="clients/last_round")
    return [*(_curve(name, "round", shown) for name in names), table]


def alignment(shown: Shown) -> list[PanelTypes]:
    """Draw how far clients agree on what a neuron learns, and the maps of it by round."""
    import wandb_workspaces.reports.v2 as wr

    lines = [_curve(name, "round", shown) for name in ("align/agreement", "align/distance")]
    return [*lines, wr.MediaBrowser(title="encoding", media_keys=["figures/encoding"], num_columns=2)]


def costs(shown: Shown) -> list[PanelTypes]:
    """Draw what the runs have cost, as bars."""
    return [_bars(name, shown) for name in COST_METRICS]


def published(shown: Shown) -> list[PanelTypes]:
    """Draw a paper's number against the measured one, run by run, for the first metric; and that one as bars."""
    import wandb_workspaces.reports.v2 as wr

    name = shown.metrics[0]
    scatter = wr.ScatterPlot(
        title=f"{name}: published (x) and measured (y)",
        x=wr.Config(f"published.{name}"),
        y=wr.SummaryMetric(name),
    )
    return [scatter, _bars(name, Shown(shown.metrics, "setting"))]


def pictures() -> list[PanelTypes]:
    """Show the figures that a run has drawn."""
    import wandb_workspaces.reports.v2 as wr

    return [
        wr.MediaBrowser(title=name, media_keys=[f"figures/{name}"], num_columns=2)
        for name in ("convergence", "split")
    ]


def column_names(shown: Shown) -> list[str]:
    """Name the columns of a table of runs: the facts that are filtered by, then the numbers."""
    facts = ("method", "data", "partition", "model", "groups", "depth", "lr", "seed")
    measured = [f"summary:{name}" for name in (*shown.metrics, *COST_METRICS)]
    return [*(f"config:{name}.value" for name in facts), *measured, *_published_columns(shown)]


def _published_columns(shown: Shown) -> list[str]:
    return [f"config:published.value.{name}" for name in shown.metrics]


def _by(shown: Shown) -> Any:
    import wandb_workspaces.reports.v2 as wr

    return wr.Config(shown.by)


def _curve(metric: str, axis: str, shown: Shown) -> PanelTypes:
    import wandb_workspaces.reports.v2 as wr

    return wr.LinePlot(
        title=f"{metric} by {AXES[axis]}",
        x=axis,
        y=[metric],
        title_x=AXES[axis],
        title_y=metric,
        groupby=_by(shown),
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        max_runs_to_show=_MOST_RUNS,
    )


def _bars(metric: str, shown: Shown) -> PanelTypes:
    import wandb_workspaces.reports.v2 as wr

    return wr.BarPlot(
        title=metric,
        metrics=[metric],
        groupby=_by(shown),
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        max_runs_to_show=_MOST_RUNS,
    )
