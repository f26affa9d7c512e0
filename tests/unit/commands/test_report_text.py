"""A report's table as text: Markdown, LaTeX, and terminals of any width."""

import io

import pandas as pd
import pytest

from fedfeat.commands.report_text import column_parts, latex, markdown, one_head, show

LINES = pd.DataFrame(
    {
        "setting": ["fed2, cifar10, structure.groups=20", "fedavg, cifar10"],
        "runs": ["2", "1"],
        "global/acc": ["0.55 ± 0.071 (published 0.5)", "nan"],
        "global/client_acc_worst": ["0.1 ± 0.2", "-"],
        "to_target/0.85/rounds": ["12 (1/2 runs)", "-"],
        "to_target/0.85/bytes": ["1.5 MB (1/2 runs)", "-"],
    }
)


def test_latex_is_a_booktabs_table_with_one_line_per_setting():
    text = latex(LINES, ["A warning."])
    comments, _, rest = text.partition("\\begin")
    assert comments.splitlines() == [r"% Needs \usepackage{booktabs}.", "% A warning."]
    lines = ("\\begin" + rest).splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrr}"
    assert [line for line in lines if "rule" in line] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert lines[-1] == r"\end{tabular}"
    rows = [line.removesuffix(r" \\").split(" & ") for line in lines if line.endswith(r" \\")]
    assert [len(row) for row in rows] == [6, 6, 6]
    assert rows[0][3] == r"global/client\_acc\_worst"
    assert rows[1][2] == r"0.55 $\pm$ 0.071 (published 0.5)"


def test_latex_has_no_character_left_that_means_something_else():
    lines = pd.DataFrame({"setting": [r"50% & #1 $x_y$ {a} ~ ^ \ <b>|"]})
    row = latex(lines, []).splitlines()[5]
    expected = (
        r"50\% \& \#1 \$x\_y\$ \{a\} \textasciitilde{} \textasciicircum{} \textbackslash{} $<$b$>$$|$ \\"
    )
    assert row == expected


def test_markdown_keeps_bars_inside_cells():
    assert markdown(pd.DataFrame({"setting": ["a|b"], "x": ["1"]})).splitlines()[2] == r"| a\|b | 1 |"


def printed(lines, width):
    from rich.console import Console

    out = Console(file=io.StringIO(), width=width)
    show(lines, out)
    return out.file.getvalue().splitlines()


def cells(lines):
    """All characters of the tables' cells, column by column of each table, without blanks."""
    columns = {}
    for line in lines:
        if line[:1] in "│┃":
            for number, cell in enumerate(line.strip("│┃").replace("┃", "│").split("│")):
                columns.setdefault(number, []).append(cell.strip())
        elif line.startswith("┏"):
            yield from map("".join, columns.values())
            columns = {}
    yield from map("".join, columns.values())


@pytest.mark.parametrize("lines", [LINES, pd.concat([LINES] * 4)], ids=["few", "many"])
@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
def test_nothing_is_lost_at_any_width(lines, width):
    """Every name and every cell stands somewhere, whole, though it may be broken over lines."""
    found = printed(lines, width)
    assert all(len(line.rstrip()) <= width for line in found)
    assert not any("…" in line for line in found)
    text = "".join(cells(found)).replace(" ", "")
    for word in {*lines.columns[1:], *lines.to_numpy().ravel()}:
        assert word.replace(" ", "") in text or width < 40


def test_what_fits_is_one_table():
    assert sum(line.startswith("┏") for line in printed(LINES, 200)) == 1


def test_few_settings_with_many_columns_are_turned():
    found = printed(LINES, 80)
    assert sum(line.startswith("┏") for line in found) == 1
    assert any(line.startswith("│ global/client_acc_worst │") for line in found)


def test_many_settings_are_printed_in_parts_that_say_so():
    found = printed(pd.concat([LINES] * 4), 80)
    assert [line.strip() for line in found if line.startswith("column")] == [
        "columns 1 to 3 of 5",
        "columns 4 to 5 of 5",
    ]


def test_columns_are_shared_out_in_order():
    parts = column_parts(LINES, 80)
    assert [name for part in parts for name in part] == list(LINES.columns[1:])
    assert column_parts(LINES, 10) == [[name] for name in LINES.columns[1:]]


def test_differences_in_several_settings_are_told_apart_in_every_part():
    """Two settings with three methods each: no two lines have one head, by which a narrow table would be turned."""
    pairs = pd.DataFrame(
        {
            "setting": ["iid"] * 3 + ["dirichlet"] * 3,
            "method": ["fed2", "fedprox", "fedrep"] * 2,
            "less fedavg": [f"+0.{n}11" for n in range(6)],
            "95% interval": [f"[+0.{n}0, +0.{n}2]" for n in range(6)],
            "better in": ["3 of 3 seeds"] * 6,
        }
    )
    lines = one_head(pairs)
    assert lines.setting.tolist()[:2] == ["iid: fed2", "iid: fedprox"]
    for width in (60, 80, 120):
        text = "\n".join(printed(lines, width))
        assert all(text.count(f"+0.{n}11") == 1 for n in range(6)), width
        assert "…" not in text
    assert one_head(pairs.drop(columns="setting")).columns[0] == "method"
