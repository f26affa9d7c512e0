"""A saved view and a report of a W&B project, built by code, and what of them would be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedfeat.commands.wandb_panels import PUBLISHED, Shown, column_names, sections

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace

ABOUT = (
    "Curves are means over the runs of one {by}, bands one sample standard deviation. A comparison is fair where the "
    "runs differ in the method alone: filter by data, partition and model, or group by setting."
)


def workspace(entity: str, project: str, name: str, shown: Shown, tags: Sequence[str] = ()) -> Workspace:
    """Build a saved view of a project.

    Args:
        entity: User or team.
        project: The project.
        name: What to call the view.
        shown: Metrics, and what makes a curve.
        tags: Show only runs that have one of these tags; none: all.
    """
    import wandb_workspaces.workspaces as ws

    flow = ws.SectionLayoutSettings(columns=3, rows=2)
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            ws.Section(name=title, panels=panels, is_open=not number, layout_settings=flow)
            for number, (title, panels) in enumerate(sections(shown).items())
        ],
        settings=ws.WorkspaceSettings(x_axis="round", max_runs=100, group_by_prefix="first"),
        runset_settings=ws.RunsetSettings(
            groupby=[ws.Config(shown.by)],
            filters=_with(tags),
            pinned_columns=["run:displayName", *column_names(shown)],
        ),
    )


def report(
    entity: str, project: str, name: str, shown: Shown, tags: Sequence[str] = (), table: str = ""
) -> Report:
    """Build a report on a project.

    Args:
        entity: See `workspace`.
        project: See `workspace`.
        name: What to call the report.
        shown: See `workspace`.
        tags: See `workspace`.
        table: Published and measured numbers of runs of this machine, in Markdown.
    """
    import wandb_workspaces.reports.v2 as wr

    def grid(panels: list[Any]) -> Any:
        # Without a project of its own, a run set is that of the report.
        runs = wr.Runset(
            name="runs",
            groupby=[f"config.{shown.by}"],
            filters=_with(tags),
            visible_columns=column_names(shown),
        )
        return wr.PanelGrid(runsets=[runs], panels=panels)

    blocks: list[Any] = [wr.TableOfContents(), wr.P(text=ABOUT.format(by=shown.by))]
    first, *others = sections(shown).items()
    # What a paper says comes right behind the curves.
    for title, panels in (first, *sorted(others, key=lambda part: part[0] != PUBLISHED)):
        blocks.append(wr.H2(text=title))
        if table and title == PUBLISHED:
            blocks.append(wr.MarkdownBlock(text=table))
        blocks.append(grid(panels))
    return wr.Report(entity=entity, project=project, title=name, blocks=blocks, width="fluid")


def _with(tags: Sequence[str]) -> Any:
    import wandb_workspaces.workspaces as ws

    return ws.And(ws.Tags().isin(list(tags))) if tags else ""


def sent(view: Workspace | Report) -> dict[str, Any]:
    """Give what saving a view sends, as plain values."""
    model = view._to_model()
    where = {"entityName": view.entity, "projectName": view.project, "displayName": model.display_name}
    return {**where, "spec": model.spec.model_dump(by_alias=True, exclude_none=True, mode="json")}
