"""FedOpt around HeteroFL and FedRolex: numbers that nobody of a cohort holds rest, with their moments."""

import pytest
import torch
from harness import parties
from width_rounds import SETTINGS, federation_of

from fedfeat import tree
from fedfeat.algorithms.fedopt import FedAdamServer, FedAvgMServer
from fedfeat.algorithms.fedrolex import FedRolexServer
from fedfeat.algorithms.heterofl import HeteroFLClient, HeteroFLServer
from fedfeat.clients.width_levels import WidthLevels, WidthNetworks
from fedfeat.models.mlp import mlp
from fedfeat.types import Update, Weights

FIRST = "encoder.fc1.linear.weight"
LAST = "head.fc2.linear.weight"
ADAM = {"beta1": 0.8, "beta2": 0.9, "tau": 0.03, "lr": 0.05}
SERVERS = {
    "avgm": lambda average: FedAvgMServer(average=average, beta=0.6, lr=0.7),
    "adam": lambda average: FedAdamServer(average=average, **ADAM),
    "adam of the code": lambda average: FedAdamServer(
        average=average, **ADAM | {"v_init": 0}, bias_correction=True
    ),
}


def started(folder, server):
    """The state before the first round of a hidden layer of 4, whole for clients 0 and 2 and halved for 1."""
    networks = WidthNetworks(WidthLevels((1, 0.5)), lambda: mlp((4,), 3, hidden=[4]), 0)
    return parties(folder, client=HeteroFLClient, server=server, networks=networks).start().state


def after(server, state, cohort, change, num_examples=3):
    """The state after a round in which everyone of a cohort has moved all that it holds by ``change``."""
    sent = {k: server.broadcast(state, k).params for k in cohort}
    moved = {k: {key: own + change for key, own in params.items()} for k, params in sent.items()}
    return server.aggregate(state, [Update(k, num_examples, Weights(moved[k]), None, {}) for k in cohort])


def two_rounds(folder, name, average):
    """Everyone moves by .1, then client 1 alone sends what it received."""
    server = SERVERS[name](average)
    start = started(folder, server)
    first = after(server, start, (0, 1), 0.1)
    return server, start, first, after(server, first, (1,), 0.0)


def steps_by_hand(name):
    """How far one number has moved after .1 and after 0."""
    if name == "avgm":
        return [0.7 * 0.1, 0.7 * (0.1 + 0.6 * 0.1)]
    m, v, x, found = 0.0, 0.03**2 if name == "adam" else 0.0, 0.0, []
    for t, delta in enumerate((0.1, 0.0), start=1):
        m, v = 0.8 * m + 0.2 * delta, 0.9 * v + 0.1 * delta**2
        factor = 1.0 if name == "adam" else (1 - 0.9**t) ** 0.5 / (1 - 0.8**t)
        x += factor * 0.05 * m / (v**0.5 + 0.03)
        found.append(x)
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_what_nobody_of_a_cohort_holds_keeps_its_value_and_its_moments(name, tmp_path):
    server, start, first, second = two_rounds(tmp_path, name, HeteroFLServer(output_rows="all"))
    once, twice = steps_by_hand(name)
    x = [server.params(state) for state in (start, first, second)]
    for key, inside in {FIRST: (slice(2),), LAST: (slice(3), slice(2))}.items():
        held = torch.zeros_like(x[0][key], dtype=torch.bool)
        held[inside] = True
        torch.testing.assert_close(x[1][key], x[0][key] + once)
        assert torch.equal(x[2][key][~held], x[1][key][~held])
        torch.testing.assert_close(x[2][key][held], x[0][key][held] + twice)
        old, new = first.moments[key], second.moments[key]
        assert torch.equal(new.m[~held], old.m[~held])
        assert name == "avgm" or torch.equal(new.v[~held], old.v[~held])
        assert new.steps[held].unique().tolist() == [2]
        assert new.steps[~held].unique().tolist() == [1]


def test_numbers_go_on_from_their_own_steps(tmp_path):
    """Those of both rounds take their third step, with its bias correction, where others take their second."""
    server, start, _, second = two_rounds(tmp_path, "adam of the code", HeteroFLServer(output_rows="all"))
    third = after(server, second, (0, 1), 0.1)
    x, m, v = 0.0, 0.0, 0.0
    for t in (1, 2):
        m, v = 0.8 * m + 0.2 * 0.1, 0.9 * v + 0.1 * 0.1**2
        x += (1 - 0.9**t) ** 0.5 / (1 - 0.8**t) * 0.05 * m / (v**0.5 + 0.03)
    moved = server.params(third)[FIRST] - server.params(start)[FIRST]
    torch.testing.assert_close(moved[2:], torch.full((2, 4), x))
    assert not torch.isclose(moved[0, 0], torch.tensor(x))
    assert third.moments[FIRST].steps[:, 0].tolist() == [3, 3, 2, 2]


@pytest.mark.parametrize("name", SERVERS)
def test_the_window_of_the_round_moves_and_nothing_else(name, tmp_path):
    server, _, first, second = two_rounds(tmp_path, name, FedRolexServer(output_rows="all"))
    x = [server.params(state)[FIRST] for state in (first, second)]
    assert (x[0] != x[1]).any(1).tolist() == [False, True, True, False]


def test_rows_of_the_last_layer_move_where_somebody_holds_their_class(tmp_path):
    server = SERVERS["avgm"](HeteroFLServer())
    start = started(tmp_path, server)
    present = torch.tensor([[True, True, True], [True, False, False], [True, True, True]])
    start = start._replace(average=start.average._replace(present=present))
    first = after(server, start, (0, 1), 0.1)
    second = after(server, first, (1,), 0.0)
    old, new = (server.params(state)[LAST] for state in (first, second))
    assert (old != new).tolist() == [[True, True, False, False], [False] * 4, [False] * 4]


def test_a_client_without_weight_covers_nothing(tmp_path):
    server = SERVERS["avgm"](HeteroFLServer("samples"))
    first = after(server, started(tmp_path, server), (0, 1), 0.1)
    rested = after(server, first, (0, 1), 0.1, num_examples=0)
    assert all(torch.equal(new, first.average.params[key]) for key, new in rested.average.params.items())


def test_a_round_without_updates_moves_the_window_alone(tmp_path):
    server = SERVERS["avgm"](FedRolexServer())
    first = after(server, started(tmp_path, server), (0, 1), 0.1)
    rested = server.aggregate(first, [])
    assert rested.average.round_idx == first.average.round_idx + 1
    assert tree.sha256(rested.average.params) == tree.sha256(first.average.params)
    assert rested.moments is first.moments


def test_around_each_other_both_rest(tmp_path):
    inner = SERVERS["adam"](HeteroFLServer())
    server, _, first, second = two_rounds(tmp_path, "avgm", inner)
    old, new = (server.params(state)[FIRST] for state in (first, second))
    assert (old != new).any(1).tolist() == [True, True, False, False]


def test_statistics_are_taken_once_a_round_of_what_the_step_has_given(tmp_path):
    """Those of the whole network that is sent, at the cost of HeteroFL alone."""
    setting, run = SETTINGS["batch norm"], {}
    for name, server in (("alone", HeteroFLServer()), ("around", SERVERS["avgm"](HeteroFLServer()))):
        run[name] = federation_of(setting, tmp_path / name, server=server)
        run[name] = run[name], *run[name].run()
    costs = {name: records[-1].metrics["compute/flops"] for name, (_, _, records) in run.items()}
    assert costs["around"] == costs["alone"]
    federation, steps, _ = run["around"]
    state = steps[-1].state.average
    taken = federation.server.average.with_params(state, state.params).statistics
    assert all(torch.equal(taken[key], own) for key, own in state.statistics.items())
    assert len(taken) > 0
