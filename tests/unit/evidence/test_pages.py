"""What stands between the marks is made again, and nothing else."""

import pytest

from fedfeat.errors import ConfigError
from fedfeat.evidence.pages import filled
from fedfeat.evidence.wording import markdown

PAGE = "a\n<!-- made: one x=1 y='b c' -->\nold\n<!-- end -->\nb\n<!-- made: two -->\n<!-- end -->\n"
MAKERS = {"one": lambda x, y: f"{x}{y}\n", "two": lambda: "2\n"}


def test_parts_are_replaced_and_the_rest_stays():
    expected = (
        "a\n<!-- made: one x=1 y='b c' -->\n1b c\n<!-- end -->\nb\n<!-- made: two -->\n2\n<!-- end -->\n"
    )
    assert filled(PAGE, MAKERS) == expected
    assert filled(expected, MAKERS) == expected
    assert filled("nothing made\n", MAKERS) == "nothing made\n"


def test_a_part_that_nobody_makes_or_that_has_no_end_is_refused():
    with pytest.raises(ConfigError, match=r"tow must be a known key.*did you mean two"):
        filled("<!-- made: tow -->\n<!-- end -->\n", MAKERS)
    with pytest.raises(ConfigError, match="1 has none"):
        filled("<!-- made: two -->\n", MAKERS)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            "one x=1",
            r"made: one must have the values that it takes \(missing a required argument: 'y'\), but it is 'x=1'",
        ),
        (
            "two z=1",
            r"made: two must have the values that it takes \(got an unexpected keyword argument 'z'\)",
        ),
        ("one x=1 y='b", r"made: one must have the values that it takes \(No closing quotation\)"),
        ("one x=1 y=2 x=3", "made: one must have each value once, but it is 'x=1 y=2 x=3'"),
    ],
)
def test_values_that_a_part_does_not_take_are_refused(part, said):
    with pytest.raises(ConfigError, match=said):
        filled(f"<!-- made: {part} -->\n<!-- end -->\n", MAKERS)


def test_a_table():
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert markdown(["a"], []) == "No run is finished yet.\n"
