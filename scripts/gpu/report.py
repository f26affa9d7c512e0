"""``report.json`` and ``report.md`` of what is known so far."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedfeat.runs.provenance import versions
from gpu.parts import PARTS, Options, Row


def write_report(
    options: Options, notes: Mapping[str, str | None], rows: Mapping[str, Sequence[Row]]
) -> None:
    """Write both files, each as a whole or not at all.

    Args:
        options: The report's.
        notes: Of each part that has run now the sentence of what went wrong, if anything did.
        rows: Of each part.
    """
    parts = {
        name: {"note": notes.get(name), "rows": list(rows[name])}
        for name in PARTS
        if name in notes or rows[name]
    }
    report = {"command": sys.argv, **options.kind(), "versions": versions(), "parts": parts}
    replace(options.out / "report.json", json.dumps(report, indent=1) + "\n")
    replace(
        options.out / "report.md",
        "\n".join(["# GPU report", *_summary(options.small, rows), *_sections(parts)]) + "\n",
    )


def replace(path: Path, text: str) -> None:
    """Write a file under another name and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _summary(small: bool, rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """Say in a few lines what one wants to know first."""
    lines = [""]
    if small:
        lines += ["Settings are tiny: that everything runs is all that this shows.", ""]
    compared = [row for row in rows.get("agreement", ()) if "agrees" in row]
    if compared:
        apart = [row["key"] for row in compared if not row["agrees"]]
        which = f"but for {', '.join(apart)}" if apart else "all of them"
        lines.append(
            f"- Weights of CPU and GPU agree in {len(compared) - len(apart)} of {len(compared)} settings, {which}."
        )
    for name in ("w4", "w4_steps", "several"):
        timed = [row for row in rows.get(name, ()) if "s, 1,500 rounds" in row]
        if timed:
            best = min(timed, key=lambda row: row["s, 1,500 rounds"])
            lines.append(
                f"- {PARTS[name].title}: at best {best['s, 1,500 rounds']:.4g} s for 1,500 rounds ({best['key']})."
            )
    inside = [row for row in rows.get("waits", ()) if row.get("inside")]
    if any("inside" in row for row in rows.get("waits", ())):
        lines.append(
            f"- Waits inside local epochs: {'; '.join(str(row['key']) for row in inside) or 'none'}."
        )
    return lines


def _sections(parts: Mapping[str, Row]) -> list[str]:
    lines = []
    for name, part in parts.items():
        lines += ["", f"## {PARTS[name].title}", "", PARTS[name].about]
        lines += ["", f"**{part['note']}**"] if part["note"] else []
        lines += ["", *table(part["rows"])] if part["rows"] else []
    return lines


def table(rows: Sequence[Row]) -> list[str]:
    """Give a Markdown table with a column for every name that some row has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = ["" if name == "key" else name for name in columns]
    body = [[_cell(row.get(name)) for name in columns] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(columns), *body)]


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
