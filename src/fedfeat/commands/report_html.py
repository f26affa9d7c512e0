"""A report as one HTML page that needs nothing else: style, script, data and pictures are in it.

The page's own script and style are named in its Content-Security-Policy by their digests, and nothing may be loaded.
Whatever comes from runs is escaped: by Jinja in text, as JSON without ``<`` for the script, which writes text alone.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedfeat.commands.report_compared import Compared
from fedfeat.commands.report_details import (
    alignments,
    curves,
    data_facts,
    differing,
    distributions,
    splits,
)
from fedfeat.commands.report_gathered import Gathered
from fedfeat.commands.report_rows import write_number
from fedfeat.runs.figures import PALETTE
from fedfeat.runs.provenance import git_commit, versions

_FOLDER = Path(__file__).parent / "page"
_SCRIPTS = ("tables.js", "curves.js", "cells.js", "clients.js", "start.js")
_FINGERPRINTS = ("examples", "split")


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: What stands in it.
        value: What it is sorted by where that is a number.
        whole: What the text is short for.
    """

    text: str
    value: float | None = None
    whole: str = ""


class Table(NamedTuple):
    """A table that sorts.

    Attributes:
        name: Its caption.
        head: Names of the columns.
        rows: The cells.
    """

    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def is_word(self, column: int) -> bool:
        """Whether a column is sorted by no number."""
        return all(row[column].value is None for row in self.rows)


def html(found: Gathered, pictures: Mapping[Path, str]) -> str:
    """Write the page.

    Args:
        found: What the report shows.
        pictures: SVG files to put in, with what they show.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    script = "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    parts = {
        "curves": curves(found),
        "splits": splits(found),
        "clients": distributions(found),
        "maps": alignments(found),
    }
    keys, values = differing(found)
    provenance, made_by = _provenance(found)
    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    # Settings keep the order of the table.
    environment.policies["json.dumps_kwargs"] = {
        "sort_keys": False,
        "allow_nan": False,
        "separators": (",", ":"),
    }
    return environment.get_template("page.html").render(
        found=found,
        num_runs=sum(map(len, found.groups.values())),
        policy=_policy(script, style),
        script=script,
        style=style,
        data=parts | {"palette": PALETTE},
        main=_main(found),
        pairs=_pairs(found.compared),
        ranks=_ranks(found.compared),
        published=_published(found),
        differing=_differing([*found.settings], keys, values),
        provenance=provenance,
        made_by=made_by,
        pictures={shown: _embedded(path) for path, shown in pictures.items()},
        maker=f"fedfeat {versions()['fedfeat']}, commit {git_commit() or 'unknown'}",
    )


def _policy(script: str, style: str) -> str:
    allowed = {"script-src": script, "style-src": style}
    hashed = [
        f"{kind} 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for kind, text in allowed.items()
    ]
    return "; ".join(
        ["default-src 'none'", *hashed, "img-src data:", "base-uri 'none'", "form-action 'none'"]
    )


def _main(found: Gathered) -> Table:
    rows = []
    for line in found.lines.itertuples(index=False):
        cells = [Cell(line[0]), Cell(line[1], float(line[1]))]
        for name, text in zip(found.lines.columns[2:], line[2:], strict=True):
            key = (line[0], name)
            cells.append(
                Cell(text, _finite(found.rows.loc[key, "mean"]) if key in found.rows.index else None)
            )
        rows.append(cells)
    return Table("Settings: mean ± standard deviation over runs", [*found.lines.columns], rows)


def _pairs(compared: Compared | None) -> Table | None:
    if compared is None or not compared.pairs:
        return None
    lines, rows = compared.pair_lines(), []
    for pair, line in zip(compared.pairs, lines.itertuples(index=False), strict=True):
        low, mean = _finite(pair.interval.low), _finite(pair.interval.mean)
        numbers = [mean, low, pair.ahead / pair.interval.num_seeds]
        words = [Cell(text) for text in line[:-3]]
        rows.append([*words, *(Cell(text, value) for text, value in zip(line[-3:], numbers, strict=True))])
    return Table("Differences, paired by seed", [*lines.columns], rows)


def _ranks(compared: Compared | None) -> Table | None:
    if compared is None or not compared.ranks:
        return None
    lines = compared.rank_lines()
    rows = [
        [Cell(line[0]), Cell(line[1], rank.mean), *(Cell(text, rank.p_value) for text in line[2:])]
        for rank, line in zip(compared.ranks, lines.itertuples(index=False), strict=True)
    ]
    return Table("Mean ranks over settings", [*lines.columns], rows)


def _published(found: Gathered) -> Table | None:
    rows = []
    for (label, name), row in found.rows[found.rows.published.notna()].iterrows():
        numbers = [row.published, row["mean"], row["std"], row.difference]
        texts = [
            "-" if math.isnan(number) else write_number(name, number, sign=at == 3)
            for at, number in enumerate(numbers)
        ]
        cells = [Cell(text, _finite(number)) for text, number in zip(texts, numbers, strict=True)]
        rows.append([Cell(label), Cell(name), *cells, Cell(f"{row.num_runs:.0f}", row.num_runs)])
    head = ["setting", "quantity", "published", "measured", "std", "difference", "runs"]
    return Table("Published against measured", head, rows) if rows else None


def _differing(labels: Sequence[str], keys: Sequence[str], values: Sequence[Sequence[str]]) -> Table | None:
    """Lay out as few columns as there are settings or keys."""
    if not keys:
        return None
    head, names, rows = ["key", *labels], keys, values
    if len(keys) < len(labels):
        head, names, rows = ["setting", *keys], labels, [*zip(*values, strict=True)]
    cells = [[Cell(name), *map(Cell, row)] for name, row in zip(names, rows, strict=True)]
    return Table("Keys of the configuration in which settings differ", head, cells)


def _provenance(found: Gathered) -> tuple[Table, list[str]]:
    """List every run with what made it; what all have in common is said once, in sentences."""
    runs = [(label, run) for label, setting in found.settings.items() for run in setting.runs]
    packages = [made if isinstance(made := run.summary.get("versions"), dict) else {} for _, run in runs]
    common = {k: v for k, v in packages[0].items() if all(one.get(k) == v for one in packages)}
    root = os.path.commonpath([run.path.resolve().parent for _, run in runs])
    machines = [_machines(run.summary) for _, run in runs]
    rows, differ = [], any(one.keys() - common.keys() for one in packages)
    for (label, run), made, ran_on in zip(runs, packages, machines, strict=True):
        digests = [*data_facts(run).fingerprint, "", ""][: len(_FINGERPRINTS)]
        kept = [run.summary.get(key) for key in ("git_commit", "config_sha256", "weights_sha256")]
        seed, seconds = run.summary["seed"], _finite(run.summary.get("seconds"))
        cells = [Cell(label), Cell(str(seed), _finite(seed)), *map(_digest, (kept[0], *digests, *kept[1:]))]
        cells.append(Cell("" if seconds is None else f"{seconds:.0f}", seconds))
        other = ", ".join(f"{name} {version}" for name, version in made.items() if name not in common)
        cells += [Cell(other)] if differ else []
        cells += [Cell(ran_on)] if len({*machines}) > 1 else []
        rows.append([*cells, Cell(os.path.relpath(run.path.resolve(), root))])
    head = ["setting", "seed", "commit", *_FINGERPRINTS, "configuration", "weights", "seconds"]
    notes = [f"Directories are those below {root}."]
    if common:
        versions_text = ", ".join(f"{name} {version}" for name, version in common.items())
        notes.append(f"Of all runs: {versions_text}.")
    if machines[0] and len({*machines}) == 1:
        notes.append(f"All ran on {machines[0]}.")
    head += [*(["versions"] if differ else []), *(["machine"] if len({*machines}) > 1 else []), "directory"]
    return Table("Runs", head, rows), notes


def _machines(summary: Mapping[str, Any]) -> str:
    """Write what a run ran on, one after the other; nothing where it does not say."""
    found = [one for one in summary.get("machines") or () if isinstance(one, Mapping)]
    parts = [(one.get("cpu"), f"{one.get('cores')} cores", one.get("bf16"), one.get("gpu")) for one in found]
    return "; ".join(", ".join(str(part) for part in those if part) for those in parts)


def _digest(digest: Any) -> Cell:
    """Shorten a digest; the whole is there on hovering."""
    text = str(digest or "")
    ending = "-dirty" if text.endswith("-dirty") else ""
    return Cell(text[:10] + ending if len(text) > 16 else text, whole=text)


def _embedded(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
