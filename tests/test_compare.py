"""docs/compare.md: its tests exist, its speeds are those of docs/performance.md, every cell has its file."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
RIVALS = ["PFLlib", "HtFLlib", "FL-bench", "flower", "fluke", "pfl-research", "FedLab", "FederatedScope"]
# What needs no file: nothing was found or looked for, or it is the user's code.
NOTHING = {"no", "n/c", "own", "none"}


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next one."""
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of the rows of tables, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def sources() -> dict[int, str]:
    """What stands under the number of a feature in the list of files."""
    found: dict[int, str] = {}
    for item in re.split(r"^- \*\*", section(PAGE, "Where it was read"), flags=re.MULTILINE)[1:]:
        numbers = re.match(r"[\d, ]+", item)
        assert numbers, item
        found |= {int(number): item for number in numbers[0].split(",")}
    return found


def functions(tree: ast.AST) -> set[str]:
    """Names of test functions, those of a class behind its name."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{name}" for name in functions(node)}
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            found.add(node.name)
    return found


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST.findall(PAGE))))
def test_every_test_that_the_page_names_exists(path, name):
    assert name in functions(ast.parse((ROOT / path).read_text(encoding="utf-8")))


def test_every_test_on_the_page_is_named_in_full():
    assert PAGE.count("::test_") == len(TEST.findall(PAGE)) > 20


FEATURES = rows(section(PAGE, "Features"))


@pytest.mark.parametrize("cells", FEATURES, ids=[cells[0] for cells in FEATURES])
def test_every_cell_has_a_test_or_a_file(cells):
    text = sources()[int(cells[0].split()[0])]
    assert len(cells) == 2 + len(RIVALS)
    assert TEST.search(text) or ".ci/run" in text
    without = [
        name
        for name, cell in zip(RIVALS, cells[2:], strict=True)
        if cell not in NOTHING and f"`{name}/" not in text and cell != "0"
    ]
    assert without == []


def test_features_are_numbered_and_all_have_their_place():
    assert [int(cells[0].split()[0]) for cells in FEATURES] == list(range(1, len(FEATURES) + 1))
    assert sources().keys() == set(range(1, len(FEATURES) + 1))


def test_speeds_are_those_of_the_page_of_performance():
    text = section(PAGE, "Speed")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 2
    assert tables[0] in section(PERFORMANCE, "Beside other simulators")
    assert tables[1] in section(PERFORMANCE, "Beside hand-written loops")
    assert re.findall(r"\d*\.\d+", re.sub(r"(?m)^\|.*", "", text)) == [], "numbers stand in the tables alone"


def test_there_is_no_number_of_a_gpu_yet():
    assert ("fedfeat has no GPU number at all" in PAGE) == ("No GPU was to be had so far" in PERFORMANCE)


def test_counts_of_ours():
    methods, sets, tests = (
        next(cells[1] for cells in FEATURES if title in cells[0])
        for title in ("methods", "data sets", "test functions")
    )
    listed = [cells for cells in rows(section(PAGE, "Which method where")) if cells[1]]
    names = [name for cells in listed for name in cells[0].replace("server optimizers", "a,b,c,d").split(",")]
    assert int(methods) == len(names)
    shipped = {path.stem for path in (ROOT / "configs" / "data").glob("*.yaml")}
    assert int(sets) == len(shipped - {"synthetic", "image_folder"})
    number = sum(
        len(functions(ast.parse(path.read_text(encoding="utf-8"))))
        for path in (ROOT / "tests").rglob("test_*.py")
    )
    least = int(tests.replace(",", "").rstrip("+"))
    assert least <= number


def test_methods_are_named_as_they_are_called():
    shipped = {path.stem for path in (ROOT / "configs" / "algorithm").glob("*.yaml")}
    column = [cells[1] for cells in rows(section(PAGE, "Which method where"))]
    called = {name for cell in column for name in re.findall(r"`(\w+)`", cell)}
    assert len(called) > 20
    assert called <= shipped
