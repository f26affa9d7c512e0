"""Labels of settings in reports and figures."""

import pytest

from fedfeat.runs.finished import label_settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([{"lr": 0.1, "a.b": 1}, {"lr": 0.2, "a.b": 1}], ["lr=0.1", "lr=0.2"]),
        ([{"lr": 1, "data.name": "x"}, {"lr": 2, "data.name": "y"}], ["x", "y"]),
        (
            [{"m": 1, "s": 1}, {"m": 1, "s": 2}, {"m": 2, "s": 1}],
            ["m=1, s=1", "m=1, s=2", "m=2, s=1"],
        ),
        (
            [{"algorithm.name": "a"}, {"algorithm.name": "p", "mu": 1}, {"algorithm.name": "p", "mu": 2}],
            ["algorithm.name=a", "mu=1", "mu=2"],
        ),
        ([{"x": 1}, {}], ["x=1", "default"]),
        ([{"data.name": "x"}, {}], ["x", "default"]),
        ([{"name": 1}, {"name": 2}], ["name=1", "name=2"]),
    ],
)
def test_labels_are_the_fewest_keys_that_tell_apart(settings, expected):
    assert label_settings(settings) == expected


def test_many_differing_keys_still_give_different_labels():
    """Five binary switches, one setting each with one switch on, and all off: no three keys suffice."""
    settings = [{f"k{i}": int(i == on) for i in range(5)} for on in range(6)]
    assert len(set(label_settings(settings))) == 6
