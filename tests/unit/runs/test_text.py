"""Names as a narrow column has them."""

import pytest

from fedfeat.runs.text import broken_name


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("one/two/three", ["one/two/", "three"]),
        ("lr=0.1,seed=1,mu=2", ["lr=0.1,", "seed=1,", "mu=2"]),
        ("a_long_folder/x", ["a_long_f", "older/", "x"]),
        ("//a", ["//a"]),
        ("", [""]),
    ],
)
def test_a_name_is_broken_behind_its_folders_and_values(name, lines):
    assert broken_name(name, 8).split("\n") == lines
