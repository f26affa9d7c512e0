"""Build a saved view or a report of a W&B project by code (extra `wandb`).

uv run --extra wandb fedfeat-wandb workspace my_team/my_project
uv run --extra wandb fedfeat-wandb report my_project logs/sweeps/fed2/t1_vgg9 --tag fed2/t1_vgg9
uv run --extra wandb fedfeat-wandb report my_project --dry-run
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedfeat.config.command_line import FOLDERS, Parser, one_sentence
from fedfeat.errors import ConfigError, UserError

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace

METRICS = ("global/acc", "personal/acc_mean")
FACTS = (
    *("method", "setting", "data", "partition", "model", "groups", "depth", "num_clients", "cohort_size"),
    *("num_rounds", "local_epochs", "lr", "seed", "preset"),
)
"""What a run's configuration at W&B can be grouped by under a name of its own."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-wandb``."""
    args = _parser().read(arguments)
    with one_sentence("fedfeat-wandb"):
        perform(args)


def perform(args: argparse.Namespace) -> None:
    """Build what is asked for; print it, or save it and print where it is.

    Raises:
        UserError: The extra or a login is missing, the service refuses, or an argument is wrong.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise UserError(
            "the package wandb-workspaces must be installed, but it is not: uv sync --extra wandb."
        )
    from fedfeat.commands.wandb_views import sent

    entity, _, project = args.project.rpartition("/")
    if not project or "/" in entity:
        raise UserError(f"PROJECT must be a project or entity/project, but it is {args.project!r}.")
    if "." not in args.by and args.by not in FACTS:
        raise ConfigError.rule("--by", f"be one of {', '.join(FACTS)}, or config.KEY", args.by, FACTS)
    if args.folders and args.kind != "report":
        raise UserError("DIR must be given to a report, but this is a workspace, whose tables are W&B's own.")
    if args.dry_run:
        print(json.dumps(sent(_built(args, entity, project)), indent=2))
        return
    print(_saved(args, entity, project))


def _saved(args: argparse.Namespace, entity: str, project: str) -> str:
    """Save it and give its address."""
    import wandb

    try:
        # With no key, in a terminal, W&B asks for one.
        view = _built(args, entity or str(wandb.Api().default_entity), project)
        view.save()
        return str(view.url)
    except wandb.errors.UsageError as error:
        raise UserError(
            f"W&B must know who you are, but: {_line(error)} First: uv run wandb login."
        ) from error
    except (wandb.errors.Error, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"W&B must take the {args.kind}, but it does not: {_line(error)}") from error


def _built(args: argparse.Namespace, entity: str, project: str) -> Workspace | Report:
    from fedfeat.commands.wandb_panels import Shown
    from fedfeat.commands.wandb_views import report, workspace

    shown = Shown(tuple(args.metric or METRICS), args.by)
    if args.kind == "workspace":
        return workspace(entity, project, args.name or "fedfeat", shown, args.tag)
    return report(entity, project, args.name or f"{project} by {args.by}", shown, args.tag, _table(args))


def _table(args: argparse.Namespace) -> str:
    if not args.folders:
        return ""
    from fedfeat.commands.wandb_tables import published_table
    from fedfeat.runs.finished import finished_runs

    return published_table(finished_runs(args.folders), args.metric or METRICS)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _parser() -> Parser:
    parser = Parser("fedfeat-wandb", __doc__)
    what = "workspace, a saved view of the project, or report, one on it"
    parser.add_argument("kind", choices=("workspace", "report"), metavar="WHAT", help=what)
    parser.add_argument("project", metavar="PROJECT", help="project, or entity/project")
    parser.add_folders(
        f"{FOLDERS}: of finished ones, a report has published and measured numbers", at_least=0
    )
    parser.add_argument(
        "--metric", action="append", metavar="NAME", help=f"may be repeated ({', '.join(METRICS)})"
    )
    by = "what makes a curve: method, setting, data, partition, model, groups, depth, or config.KEY (%(default)s)"
    parser.add_argument("--by", default="method", metavar="FACT", help=by)
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="TAG",
        help="only runs with this tag (a preset, say); may be repeated",
    )
    parser.add_argument("--name", help="what to call it")
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent, and send nothing")
    return parser


if __name__ == "__main__":
    main()
