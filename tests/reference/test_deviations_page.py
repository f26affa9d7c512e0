"""Every deviation that docs/deviations.md names has its test, and every test its line."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "deviations.md").read_text(encoding="utf-8")
# What is the same here and there.
ALIKE = {"test_without_a_deviation_the_rule_is_ours", "test_the_rule_without_a_deviation_is_ours"}


def test_the_tests_of_the_page_are_those_of_the_files_that_its_tables_name():
    named: dict[str, set[str]] = {}
    for table in re.findall(r"^\|.*\n(?:\|.*\n)+", PAGE, re.MULTILINE):
        (name,) = re.findall(r"in numbers: test in `(\w+)`", table)
        named.setdefault(name, set()).update(re.findall(r"`(test_\w+)`", table))
    files = {path.stem.removeprefix("test_deviations_"): path for path in HERE.glob("test_deviations_*.py")}
    del files["page"]
    there = {
        name: set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)) - ALIKE
        for name, path in files.items()
    }
    assert named == there
    assert sum(map(len, there.values())) > 30


def test_every_code_that_is_named_has_its_version():
    named = set(re.findall(r"\b[\w-]+/[\w-]+(?= [0-9a-f]{7}\b)", PAGE.replace("\n", " ")))
    cited = {
        owner
        for row in re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE)
        for owner in re.findall(r"[\w-]+/[\w-]+(?=[,;]| \()", row.split("`")[0])
    }
    assert cited
    assert cited <= named
