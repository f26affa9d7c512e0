"""Samplers of the cohort beside the uniform one, whose tests are in test_sampling.py."""

import json

import numpy as np
import pytest
from harness import parties

from fedfeat.errors import ConfigError
from fedfeat.rounds.samplers import BySize, RoundRobin, Sampler, Uniform

SIZES = np.array([1, 0, 4, 2, 0, 3])
KINDS = [Uniform, BySize, RoundRobin]


def cohorts(sampler, rounds, size, able=range(6), seed=0):
    return [sampler.cohort(seed, t, able, size, SIZES) for t in range(rounds)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cohort_is_a_function_of_seed_and_round(kind):
    found = cohorts(kind(), 20, 2)
    assert found == cohorts(kind(), 20, 2)
    assert found != cohorts(kind(), 20, 2, seed=1)
    assert all(len(set(cohort)) == 2 and list(cohort) == sorted(cohort) for cohort in found)
    assert kind().cohort(0, 3, (1, 4), 2, SIZES) == (1, 4)
    assert {k for cohort in cohorts(kind(), 40, 2, able=(0, 2, 5)) for k in cohort} <= {0, 2, 5}


def test_by_size_the_first_draw_is_in_proportion_to_examples():
    counts = np.zeros(6)
    for (k,) in cohorts(BySize(), 4000, 1):
        counts[k] += 1
    np.testing.assert_allclose(counts / 4000, SIZES / 10, atol=0.03)
    assert counts[SIZES == 0].sum() == 0


def test_by_size_clients_without_examples_come_where_no_others_are_left():
    assert {0, 2, 3, 5} < set(BySize().cohort(0, 0, range(6), 5, SIZES))


def test_by_size_goes_by_the_examples_of_those_that_can_take_part():
    """Of clients 1 and 2, only 2 has examples."""
    assert set(cohorts(BySize(), 20, 1, able=(1, 2))) == {(2,)}


def test_round_robin_everyone_has_a_turn_before_anyone_has_two():
    found = cohorts(RoundRobin(), 6, 2)
    assert sorted(found[0] + found[1] + found[2]) == list(range(6))
    assert found[:3] == found[3:]
    uneven = [k for cohort in cohorts(RoundRobin(), 3, 4) for k in cohort]
    assert sorted(uneven) == sorted([*range(6)] * 2)


def test_the_loop_takes_the_plans_sampler(tmp_path):
    records = parties(tmp_path, num_rounds=3, cohort_size=1, sampler=RoundRobin()).run()[1]
    assert sorted(k for record in records[1:] for k in record.cohort) == [0, 1, 2]


@pytest.mark.parametrize("name", ["by_size", "round_robin"])
def test_samplers_are_options(name, cli, small, tmp_path):
    run = tmp_path / "run"
    words = ["federation.cohort_size=2", f"sampler={name}", f"hydra.run.dir={run}"]
    assert cli(*small, *words).code == 0
    assert json.loads((run / "summary.json").read_text())["num_rounds"] == 3


@pytest.mark.parametrize("places", [[0, 0], [1, 6], [-1, 2], []])
def test_a_sampler_of_ones_own_gives_distinct_clients(places):
    class Own(Sampler):
        def places(self, seed, round_idx, size, num_examples):
            return np.array(places, dtype=int)

    with pytest.raises(
        ConfigError, match=r"^the sampler Own must give distinct places from 0 to 5, but it is \["
    ):
        Own().cohort(0, 0, range(6), 2, SIZES)
