"""Make every table, figure and verdict of the pages again, from the runs that are kept.

The command of ``make results``. It writes pages and docs/figures; with ``--check`` it ends with 1 where one
would change.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedfeat.config.command_line import Parser
from fedfeat.config.explain import explain
from fedfeat.errors import UserError
from fedfeat.evidence import bench
from fedfeat.evidence.archive import Archive
from fedfeat.evidence.campaign_file import read_campaign
from fedfeat.evidence.claims_file import read_claims
from fedfeat.evidence.pages import filled
from fedfeat.evidence.tables import Tables
from fedfeat.evidence.verdicts import Verdicts
from fedfeat.files import atomic_write_bytes

PAGES = ("docs/claims.md", "docs/results.md")
METHODS = "docs/methods"
BOARD = "docs/leaderboard.md"


def made(root: Path, figures: Path) -> dict[str, str]:
    """Give the text of every page by its path below the checkout; pictures are written to a folder.

    Args:
        root: The checkout.
        figures: Where pictures go.
    """
    evidence, board = (
        Archive(read_campaign(root / "results" / name), root / "results" / "runs")
        for name in ("evidence.yaml", "board.yaml")
    )
    claims = read_claims(root / "results" / "claims.yaml", evidence.campaign.studies)
    makers = Verdicts(evidence, claims, figures, board).makers()
    methods = sorted(str(path.relative_to(root)) for path in (root / METHODS).glob("*.md"))
    texts = {page: filled((root / page).read_text(), makers) for page in (*PAGES, *methods)}
    makers_of = {BOARD: Tables(board, figures).makers(), bench.PAGE: bench.makers(root)}
    return texts | {page: filled((root / page).read_text(), found) for page, found in makers_of.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; ends with 1 where ``--check`` finds a change, and with 2 and one sentence for a refusal."""
    parser = Parser("results.py", __doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout (.)")
    parser.add_argument("--check", action="store_true", help="write nothing, and name what would change")
    options = parser.read(argv)
    try:
        changed = _renewed(options.root, options.check)
    except (UserError, OSError) as error:
        print(explain(error), file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if options.check and changed else 0)


def _renewed(root: Path, check: bool) -> list[str]:
    """Write what has changed, or with ``check`` nothing; name it."""
    with tempfile.TemporaryDirectory() as folder:
        files = {page: text.encode() for page, text in made(root, Path(folder)).items()}
        files |= {f"docs/figures/{path.name}": path.read_bytes() for path in sorted(Path(folder).iterdir())}
    changed = [name for name, new in files.items() if not _holds(root / name, new)]
    for name in changed:
        if not check:
            atomic_write_bytes(root / name, files[name])
        print(f"{name} {'would change' if check else 'written'}")
    return changed


def _holds(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() == content
