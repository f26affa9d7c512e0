"""A report's table as Markdown, as LaTeX and on a terminal of any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedfeat.commands.report_compared import Compared
from fedfeat.commands.report_gathered import Gathered
from fedfeat.runs.finished import Run
from fedfeat.runs.text import markdown_table

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
}
_FRAME = 3  # a column's blanks and its line


def markdown(lines: pd.DataFrame) -> str:
    """Write a table in Markdown."""
    return markdown_table([*lines], lines.replace(r"\|", r"\\|", regex=True).to_numpy().tolist())


def page(found: Gathered, figures: Mapping[str, str]) -> str:
    """Write report.md: table, notes, figures (file names without ending, with what they show) and runs."""
    text = [*(f"**{note}**\n" for note in found.warnings), markdown(found.lines)]
    text += [f"{note}\n" for note in found.explanations]
    text += _comparison(found.compared)
    text += [f"![{shown}]({stem}.png)" for stem, shown in figures.items()]
    text += ["", "Runs:", "", *(f"- {label}: {_origins(runs)}" for label, runs in found.groups.items()), ""]
    return "\n".join(text)


def latex(lines: pd.DataFrame, notes: Sequence[str]) -> str:
    r"""Write a table for ``\input``, with the rules of booktabs; notes are comments above it."""
    head, *rows = [r" & ".join(map(_escaped, row)) + r" \\" for row in ([*lines], *lines.to_numpy().tolist())]
    comments = [f"% {note}" for note in (r"Needs \usepackage{booktabs}.", *notes)]
    begin = rf"\begin{{tabular}}{{l{'r' * (lines.shape[1] - 1)}}}"
    rules = [begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join([*comments, *rules])


def one_head(pairs: pd.DataFrame) -> pd.DataFrame:
    """Put setting and method of `Compared.pair_lines` into one column, which each part of a table has."""
    if "setting" not in pairs:
        return pairs
    heads = pairs.setting + ": " + pairs.method
    return pairs.drop(columns="method").assign(setting=heads)


def show(lines: pd.DataFrame, console: Console) -> None:
    """Print a table so that nothing of it is lost.

    Where it is wider than the terminal, lines are printed as columns; where that is too wide as well, its columns stand
    in parts below each other, each with the settings.
    """
    from rich.table import Column, Table

    head, *rest = lines.columns
    parts = column_parts(lines, console.width)
    if len(parts) > 1:
        turned = lines.set_index(head).T.reset_index(names="")
        if len(column_parts(turned, console.width)) == 1:
            lines, (head, *rest) = turned, list(turned.columns)
            parts = [rest]
    for part in parts:
        # Labels and names of metrics may be longer than a terminal has room for: broken, not cut.
        columns = [Column(_heading(name), overflow="fold", justify="right") for name in part]
        first, last = rest.index(part[0]) + 1, rest.index(part[-1]) + 1
        title = (
            f"column {first} of {len(rest)}" if first == last else f"columns {first} to {last} of {len(rest)}"
        )
        shown = Table(Column(head, overflow="fold"), *columns, title_justify="left")
        shown.title = title if len(parts) > 1 else None
        for line in lines[[head, *part]].itertuples(index=False):
            shown.add_row(line[0], *map(_broken, line[1:]))
        console.print(shown, markup=False)


def column_parts(lines: pd.DataFrame, width: int) -> list[list[str]]:
    """Share the columns behind the first out among tables that are at most so wide.

    The first stands in each of them, folded between words where it takes more than two fifths of the width. A column
    that does not fit beside it stands alone and is folded.
    """
    head, *rest = lines.columns
    words = [word for label in (head, *lines[head]) for word in label.split()]
    whole, needed = max(map(len, (head, *lines[head]))), max(map(len, words))
    parts, room = list[list[str]](), 0
    for name in rest:
        texts = [_heading(name), *map(_broken, lines[name])]
        wide = max(len(line) for text in texts for line in text.splitlines()) + _FRAME
        if not parts or wide > room:
            parts.append([])
            room = width - 1 - _FRAME - min(whole, max(needed, width * 2 // 5))
        parts[-1].append(name)
        room -= wide
    return parts


def _heading(name: str) -> str:
    """Break a metric behind its folder, and a setting between its parts."""
    folder, slash, last = name.replace(", ", ",\n").rpartition("/")
    return f"{folder}{slash}\n{last}" if slash else last


def _broken(text: str) -> str:
    return text.replace(" (", "\n(")


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _comparison(compared: Compared | None) -> list[str]:
    if compared is None:
        return []
    tables = [compared.pair_lines(), compared.rank_lines()]
    text = [f"## {compared.heading}\n", *(markdown(lines) for lines in tables if len(lines))]
    return [*text, *(f"{note}\n" for note in compared.notes)]


def _origins(runs: Sequence[Run]) -> str:
    return ", ".join(f"seed {run.summary['seed']} (`{run.path}`)" for run in runs)
