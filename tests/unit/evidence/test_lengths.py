"""How long runs are expected to take, by those that are known."""

import pytest

from fedfeat.evidence.campaign import Cell
from fedfeat.evidence.lengths import Standing, expected


def cell(study, arm, seed=0):
    return Cell(study, "", arm, "", seed)


KNOWN = {
    ("short", "a", 0): (["scale=fifth", "algorithm=a", "federation.num_rounds=10", "seed=0"], 100.0),
    ("short", "a", 1): (["scale=fifth", "algorithm=a", "federation.num_rounds=10", "seed=1"], 120.0),
    ("short", "b", 0): (["scale=fifth", "algorithm=b", "federation.num_rounds=10", "seed=0"], 300.0),
    ("digits", "a", 0): (["algorithm=a"], 3.0),
    ("some", "a", 0): (["images=some", "federation.local_epochs=2", "data.loader.num_train=100"], 16.0),
}


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["scale=fifth", "algorithm=a", "federation.num_rounds=10", "seed=2"], 110.0),
        (["scale=fifth", "algorithm=b", "federation.num_rounds=40", "seed=7"], 1200.0),
        (["scale=fifth", "algorithm=b", "more=1"], 300.0),  # its preset says how many rounds it has
        (["scale=fifth", "algorithm=c", "federation.num_rounds=10"], 205.0),  # between a and b
        (["algorithm=a", "other=1"], 3.0),  # as near to two, of which one has less that it lacks
        (["scale=fifth", "algorithm=b", "federation.num_rounds=10", "federation.num_rounds=40"], 1200.0),
        (["scale=fifth", "algorithm=b", "federation.num_rounds=${r}"], 300.0),
        (["images=some", "federation.local_epochs=6", "data.loader.num_train=200"], 96.0),
    ],
    ids=[
        *(
            "median",
            "rounds",
            "preset",
            "two as near",
            "fewest of its own",
            "rounds twice",
            "rounds by a word",
        ),
        "epochs and images",
    ],
)
def test_a_run_takes_as_long_as_those_that_have_most_words_in_common(words, seconds):
    known = {cell(*name): found for name, (_, found) in KNOWN.items()}
    asked = cell("new", "x")
    every = {cell(*name): found for name, (found, _) in KNOWN.items()} | {asked: words}
    assert expected(known, every) == {asked: pytest.approx(seconds)}


def test_without_a_known_run_nothing_is_expected():
    assert expected({}, {cell("new", "x"): ["a=1"]}) == {}


@pytest.mark.parametrize(("standing", "whole"), [(Standing(0, 9, 3.0), None), (Standing(3, 9, 3.0), 9.0)])
def test_a_run_under_way_is_judged_by_its_rounds(standing, whole):
    assert standing.whole() == whole
