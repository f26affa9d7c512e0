"""Fed2 and Psi-Net through the real loop: by hand, where they are FedAvg, what they cost, and planted bugs."""

import numpy as np
import pytest
import torch
from grouped_rounds import (
    ONE_EACH,
    PAIR_AND_ONE,
    ROUNDS,
    SETTINGS,
    STEPS,
    Setting,
    base,
    check,
    federation_of,
    seeded,
)
from harness import SIZES
from torch.nn import functional

from fedfeat import tree
from fedfeat.algorithms import fed2
from fedfeat.algorithms.fed2 import Fed2Server
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.paired_mean import PairedMean
from fedfeat.errors import ConfigError
from fedfeat.models import softmax_scope
from fedfeat.models.flops import training_flops
from fedfeat.models.group_rows import rows_of, take_rows
from fedfeat.models.grouped import GroupedNetwork, GroupSeparation
from fedfeat.params import WeightedMean, copy_into


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_by_hand(name, tmp_path):
    check(SETTINGS[name], tmp_path)


def test_a_group_that_nobody_holds_keeps_its_value(tmp_path):
    """Alone, client 0 has examples of class 2 only, client 1 none of class 1."""
    federation = federation_of(Setting(cohort_size=1), tmp_path, num_rounds=6)
    steps, records = federation.run()
    kept = {0: {0, 1}, 1: {1}, 2: set()}
    assert {record.cohort for record in records[1:]} >= {(0,), (1,)}
    for before, after, record in zip(steps, steps[1:], records[1:], strict=False):
        for name, groups in after.state.group_of_row.items():
            old, new = before.state.params[name], after.state.params[name]
            for g in range(3):
                same = torch.equal(new[groups == g], old[groups == g])
                if g in kept[record.cohort[0]]:
                    assert same, name
                elif name == "head.fc2.linear.bias":
                    assert not same


def test_personal_heads_stay_with_trimmed_clients(tmp_path):
    setting = SETTINGS["personal head, trimmed"]
    federation, _, heads = check(setting, tmp_path)
    own_rows = {0: [1, 2], 1: [1, 2], 2: [0, 1, 2]}  # of classes 1, 0, 2
    for k, head in heads.items():
        memory = federation.store.get(k).personal
        found = memory["head.fc2.linear.weight"].double()
        torch.testing.assert_close(found, head["head.fc2.linear.weight"][own_rows[k]], rtol=0, atol=2e-5)
        assert set(memory) == set(head)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("boundary", ["shared", "paired"])
def test_all_groups_everywhere_are_fedavg_bit_for_bit(boundary, weighting, tmp_path):
    """With every group averaged over everyone nothing is left of the method but its network."""
    hashes = set()
    for name, server in (
        ("fed2", Fed2Server("all", weighting, weighting)),
        ("fedavg", FedAvgServer(weighting)),
    ):
        federation = federation_of(
            *(Setting(boundary=boundary), tmp_path / name),
            **{"server": server, "batch_size": 2, "momentum": 0.9, "num_rounds": 3},
        )
        hashes.add(tree.sha256(federation.run()[0][-1].state.params))
    assert len(hashes) == 1


class Permuted:
    """Every client has the groups in an order of its own."""

    def __init__(self, sets, orders):
        self.spec = GroupSeparation(depth=1, class_map=[list(classes) for classes in sets])
        self.sets, self.orders = sets, orders
        self.whole = seeded(lambda: self.spec(base(), sets))

    def key(self, client_id, round_idx=0):
        return tuple(self.sets[g] for g in self.orders[client_id])

    def kinds(self, num_clients):
        return []

    def build(self, key=None):
        key = key or self.sets
        network = self.spec(base(), self.sets, key)
        assert isinstance(network, GroupedNetwork)
        whole = self.whole.state_dict()
        copy_into(network, take_rows(whole, rows_of(self.whole.group_rows(), self.sets, key)))
        return network


@pytest.mark.parametrize("pairing", ["presence", "all"])
def test_the_order_of_a_clients_groups_does_not_matter(pairing, tmp_path):
    """To 1e-5 after the rounds: rows in another order are added with another rounding."""
    sets = ((0,), (1,), (2,))
    results = []
    for name, orders in (("same", [(0, 1, 2)] * 3), ("permuted", [(2, 0, 1), (0, 2, 1), (1, 2, 0)])):
        networks = Permuted(sets, orders)
        federation = federation_of(Setting(pairing=pairing), tmp_path / name, networks=networks)
        results.append(federation.run()[0][-1].state.params)
    for name, found in results[1].items():
        torch.testing.assert_close(found, results[0][name], rtol=0, atol=1e-5, msg=name)
    assert not torch.equal(
        results[0]["head.fc1.linear.weight"], networks.whole.state_dict()["head.fc1.linear.weight"]
    )


def test_trimmed_clients_send_receive_and_compute_less(tmp_path):
    """A group has 2 * 2 + 2 + 2 * 2 of the convolution and its norm, 4 * 2 + 2 and 2 + 1 of the linear layers: 23."""
    found = {}
    for trim, boundary in ((False, "shared"), (True, "shared"), (True, "paired")):
        setting = Setting(trim=trim, boundary=boundary)
        networks = federation_of(setting, tmp_path / "networks").executor.worker.networks
        costs = {k: float(training_flops(networks.build(networks.key(k)))) for k in range(3)}
        federation = federation_of(setting, tmp_path / f"{trim} {boundary}")
        start = federation.start().state
        sent = [tree.num_bytes(federation.server.broadcast(start, k)) for k in range(3)]
        metrics = federation.run()[1][-1].metrics
        # Shared: 12 + 6 of the convolution, 4 * 6 of the batch norm, and its counter in int64. Paired, but for the
        # counter a third of it is a group's.
        groups = (1, 2, 3) if trim else (3, 3, 3)
        shared, own = (42, 23) if boundary == "shared" else (0, 23 + 14)
        assert sent == [4 * (shared + own * number) + 8 for number in groups]
        assert metrics["comm/up_bytes"] == metrics["comm/down_bytes"] == ROUNDS * sum(sent)
        assert metrics["compute/flops"] == ROUNDS * STEPS * sum(SIZES[k] * costs[k] for k in range(3))
        found[trim, boundary] = metrics
    whole, trimmed, paired = found.values()
    for metric in ("comm/total_bytes", "compute/flops"):
        assert paired[metric] < trimmed[metric] < whole[metric]


@pytest.mark.parametrize("class_map", [ONE_EACH, PAIR_AND_ONE], ids=str)
def test_what_a_client_does_not_hold_need_not_be_trimmed(class_map, tmp_path):
    """Whole networks under a softmax over their kept groups end where trimmed ones do: what they alone have gets no
    gradient, and nobody averages it."""
    whole, trimmed = (
        federation_of(Setting(class_map, trim=trim, scope=scope), tmp_path / scope, num_rounds=4).run()[0][-1]
        for trim, scope in ((False, "kept_groups"), (True, "all"))
    )
    assert whole.state.params.keys() == trimmed.state.params.keys()
    for name, found in whole.state.params.items():
        torch.testing.assert_close(found, trimmed.state.params[name], rtol=0, atol=1e-5, msg=name)
    everything = federation_of(Setting(class_map), tmp_path / "all", num_rounds=4).run()[0][-1].state.params
    name = "head.fc1.linear.weight"
    assert (everything[name] - trimmed.state.params[name]).abs().max() > 1e-3


def test_the_server_is_scored_with_all_groups(tmp_path):
    federation = federation_of(Setting(trim=True), tmp_path)
    steps, records = federation.run()
    network = federation.executor.worker.networks.build()
    copy_into(network, steps[-1].state.params)
    test = federation.data.dataset.test
    with torch.inference_mode():
        logits = network.eval()(test.inputs)
    expected = functional.cross_entropy(logits, test.labels).item()
    assert np.isclose(records[-1].metrics["global/loss"], expected, rtol=1e-5)


def test_a_state_is_a_value(tmp_path):
    federation = federation_of(Setting(trim=True, cohort_size=1), tmp_path)
    start = federation.start()
    before = tree.sha256(start.state)
    federation.run(start)
    assert tree.sha256(start.state) == before


def by_position(group_of_row, sets, own):
    return rows_of(group_of_row, sets, sets[: len(own)])


def over_everyone(self, state, client_id, num_examples):
    weights = {"samples": num_examples, "uniform": 1}[self.group_weighting]
    return [float(weights) if classes in state.own_sets[client_id] else 0.0 for classes in state.class_sets]


ADD, RESULT, GROUP_ROWS, MEAN = PairedMean.add, PairedMean.result, GroupedNetwork.group_rows, WeightedMean.add

BUGS = {
    "groups paired by their place": ("psi_net", fed2, "rows_of", by_position),
    "absent classes averaged too": ("fed2", Fed2Server, "_group_weights", over_everyone),
    "groups without weights": (
        "fed2",
        PairedMean,
        "add",
        lambda self, params, weights, rows: ADD(self, params, [float(w > 0) for w in weights], rows),
    ),
    "shared part without weights": (
        "fed2",
        WeightedMean,
        "add",
        lambda self, params, weight: MEAN(self, params, 1),
    ),
    "softmax over all": (
        "fed2 by class count",
        softmax_scope,
        "_outside",
        lambda *_: None,
    ),
    "group norm averaged over everyone": (
        "fed2",
        GroupedNetwork,
        "group_rows",
        lambda self: {key: groups for key, groups in GROUP_ROWS(self).items() if "norm" not in key},
    ),
    "a group that nobody holds set to zero": (
        "one client a round",
        PairedMean,
        "result",
        lambda self, previous: RESULT(self, {key: torch.zeros_like(old) for key, old in previous.items()}),
    ),
    "batch norm statistics not averaged": (
        "psi_net",
        WeightedMean,
        "add",
        lambda self, params, weight: MEAN(
            self, {k: v for k, v in params.items() if "running" not in k}, weight
        ),
    ),
    "size of a client for its count of a class": (
        "psi_net of unequal groups",
        Fed2Server,
        "__init__",
        lambda self, pairing, weighting, _: vars(self).update(
            pairing=pairing, weighting=weighting, group_weighting="samples"
        ),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    name, owner, attribute, mutant = BUGS[bug]
    monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(SETTINGS[name], tmp_path)


def test_weights_by_class_count_are_refused_where_everyone_is_averaged():
    """Those without a class of the group would weigh 0, which is the other pairing."""
    rule = r"algorithm\.server\.group_weighting must be another with algorithm\.server\.pairing=all, .* 'class_count'"
    with pytest.raises(ConfigError, match=rule):
        Fed2Server("all", group_weighting="class_count")
