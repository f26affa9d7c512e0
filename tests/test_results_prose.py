"""Pages of results say in words what was measured, and in parts that are made how much."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Decimals and points that are typed: settings, published numbers, bounds of rules, factors of arithmetic.
TYPED = {
    "results": (
        "2.5 times narrower",
        "learning rate, .01",
        "within 0.9 GB",
        "published .100",
        "Dirichlet .1",
        "torch 2.15.0",
        "Validation accuracy by point",
    ),
    "claims": (
        "difference of one evaluation by 1.4 points",
        "a difference of a point that holds here",
        "2.5 standard deviations",
        "four points (.003 to .1; decay is .0001 throughout)",
        "five points",
        "p at most .05",
    ),
}
MEASURED = re.compile(r"(?<![\w.])\d*\.\d+|\b\w+ points?\b")


@pytest.mark.parametrize("page", TYPED)
def test_no_measured_number_is_typed_beside_the_parts_that_are_made(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    prose = " ".join(
        re.sub(r"<!-- made:.*?<!-- end -->|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL).split()
    )
    for known in TYPED[page]:
        prose = prose.replace(known, "")
    assert MEASURED.findall(prose) == []
    assert MEASURED.findall("from .3 it rises by two points") == [".3", "two points"]


def test_what_does_not_stand_with_the_correction_is_not_told_without_it():
    text = (ROOT / "docs" / "results.md").read_text()
    (lost,) = re.findall(r"with the correction these do not: (.*)\.\n", text)
    names = {name.partition(" ")[0] for name in re.findall(r"`([^`]+)`", lost)}
    bullets = re.split(r"\n *- ", text[text.index("What they say") : text.index("Our own questions")])
    told = [part for part in bullets if names & {*re.findall(r"claims\.md#([\w-]+)", part)}]
    assert len(told) > 2
    assert [part for part in told if "correction" not in part] == []
