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


def test_a_table():
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert markdown(["a"], []) == "No run is finished yet.\n"
