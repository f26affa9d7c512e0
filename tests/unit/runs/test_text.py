"""Names as a narrow column has them."""

import pytest

from fedfeat.runs.text import broken_name, format_bytes


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


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999.6, "1 kB"),
        (1.5e6, "1.5 MB"),
        (2e15, "2e+03 TB"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_bytes_have_a_unit_where_they_are_a_number(count, text):
    assert format_bytes(count) == text
