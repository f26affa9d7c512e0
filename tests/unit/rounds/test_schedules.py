import math

import pytest

from fedfeat.rounds.schedules import Constant, Cosine, Exponential, Milestones, Step


def test_constant_is_one():
    assert [Constant()(r, 5) for r in range(5)] == [1.0] * 5


def test_exponential_decays_per_round_down_to_its_floor():
    schedule = Exponential(gamma=0.5, floor=0.2)
    assert [schedule(r, 10) for r in range(4)] == [1.0, 0.5, 0.25, 0.2]


def test_step_multiplies_after_every_so_many_rounds():
    assert [Step(every=2, gamma=0.1)(r, 10) for r in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])


def test_cosine_warms_up_then_falls_along_half_a_cosine():
    schedule = Cosine(floor=0.1, warmup=2)
    assert [schedule(r, 6) for r in range(3)] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert schedule(4, 6) == pytest.approx(0.1 + 0.9 * 0.5)
    assert schedule(5, 6) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(0.75 * math.pi)))


def test_milestones_are_shares_of_the_rounds():
    """Of 10 rounds from the 6th and from the 8th on, as JYWa/FedNova and jhoon-oh/FedBABU have it."""
    found = [Milestones()(r, 10) for r in range(10)]
    assert found == pytest.approx([1] * 5 + [0.1] * 2 + [0.01] * 3)
    # .29 * 100 is 28.999... in binary.
    assert [Milestones(shares=(0.29,), gamma=0.5)(r, 100) for r in (28, 29)] == [1, 0.5]
    assert [Milestones(shares=(1.0,), gamma=0.5)(r, 3) for r in range(3)] == [1] * 3
    # The first round is never over before it has begun.
    assert [[Milestones()(r, n) for r in range(n)] for n in (1, 2)] == [[1], [1, pytest.approx(0.01)]]
    assert Milestones()(0, 0) == 1
