"""FedFusion with FedProx's term, and with Fed2's paired average of group-separated networks."""

import grouped_rounds
import pytest
import torch
from fusion_rounds import LR, STEPS, Setting, federation_of
from grouped_rounds import base, grouped_data, seeded
from harness import parties

from fedfeat import tree
from fedfeat.algorithms.fed2 import Fed2Server
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedfusion import FedFusionClient, FedFusionServer
from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.client import joined
from fedfeat.clients.networks import separated
from fedfeat.clients.tasks import Task
from fedfeat.models.grouped import GroupSeparation


def prox(mu):
    def build(**arguments):
        return joined([FedFusionClient, FedProxClient], mu=mu, **arguments)

    return build


def test_with_fedprox_and_no_term_nothing_changes(tmp_path):
    digests = [
        tree.sha256(federation_of(Setting("conv"), tmp_path / name, client=client).run()[0][-1].state)
        for name, client in (("a", FedFusionClient), ("b", prox(0.0)), ("c", prox(0.5)))
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("op", ["conv", "multi"])
def test_fedproxs_term_in_one_step(op, tmp_path):
    """The first step starts where the term has no slope; the second differs by -lr * mu * (w_1 - w_0)."""
    found = {}
    for name, client, steps in (
        ("w1", FedFusionClient, 1),
        ("w2", FedFusionClient, 2),
        ("prox", prox(0.5), 2),
    ):
        federation = federation_of(Setting(op), tmp_path / name, client=client)
        payload = federation.server.broadcast(federation.start().state, 2)
        update = federation.executor.worker.fit(Task(2, 0, payload, None, steps))
        found[name] = update.payload.params
    trained = [key for key in payload.params if "running" not in key and "tracked" not in key]
    assert any(key.startswith("fusion.operator.") for key in trained)
    for key in trained:
        term = LR * 0.5 * (found["w1"][key] - payload.params[key])
        torch.testing.assert_close(found["prox"][key], found["w2"][key] - term, rtol=0, atol=1e-6)
    moved = [(found["w1"][key] - payload.params[key]).abs().max() for key in trained if "fusion" in key]
    assert max(moved) > 1e-3


def grouped_fusion(op, store_dir, server, trim=False, cohort_size=3, **plan):
    data = grouped_data()
    spec = GroupSeparation(depth=1, class_map=grouped_rounds.ONE_EACH, trim=trim)

    def client(**arguments):
        return FedFusionClient(op=op, lambda_init=0.25, **arguments)

    arguments = {"lr": LR, "num_rounds": 3, "local_epochs": STEPS, "cohort_size": cohort_size}
    networks = separated(spec, base, seeded, data.class_counts, (), 0)
    return parties(
        store_dir, data=data, client=client, server=server, networks=networks, **(arguments | plan)
    )


@pytest.mark.parametrize("op", ["conv", "multi", "single"])
def test_fed2_over_all_groups_is_the_plain_average_bit_for_bit(op, tmp_path):
    digests = {
        tree.sha256(
            grouped_fusion(op, tmp_path / name, FedFusionServer(average, ema=0.5))
            .run()[0][-1]
            .state.average.params
        )
        for name, average in (("a", Fed2Server("all")), ("b", FedAvgServer()))
    }
    assert len(digests) == 1


@pytest.mark.parametrize("trim", [False, True], ids=["grouped", "trimmed"])
@pytest.mark.parametrize("op", ["conv", "multi"])
def test_the_fusion_of_a_group_that_nobody_holds_keeps_its_value(op, trim, tmp_path):
    """Alone, client 0 has examples of class 2 only, client 1 none of class 1."""
    server = FedFusionServer(Fed2Server(), ema=0.5)
    federation = grouped_fusion(op, tmp_path, server, trim, cohort_size=1, num_rounds=6)
    steps, records = federation.run()
    # A softmax over the one class of client 0's trimmed network has no slope at all.
    kept = {0: {0, 1, 2} if trim else {0, 1}, 1: {1}, 2: set()}
    assert {record.cohort for record in records[1:]} >= {(0,), (1,)}
    for before, after, record in zip(steps, steps[1:], records[1:], strict=False):
        rows = after.state.average.group_of_row
        names = [name for name in rows if name.startswith("fusion.")]
        assert names == (
            ["fusion.operator.lambdas"]
            if op == "multi"
            else [f"fusion.operator.conv.{x}" for x in ("weight", "bias")]
        )
        for name in names:
            old, new = before.state.average.params[name], after.state.average.params[name]
            for g in range(3):
                here = rows[name] == g
                assert torch.equal(new[here], old[here]) == (g in kept[record.cohort[0]]), (name, g)


def test_a_trimmed_client_sends_the_fusion_of_its_groups(tmp_path):
    """Each of three groups has two channels: conv is 2 * 4 + 2 numbers of a group."""
    sizes = {}
    for op in ("conv", "multi"):
        federation = grouped_fusion(op, tmp_path / op, FedFusionServer(Fed2Server()), trim=True)
        state = federation.start().state
        sizes[op] = [tree.num_bytes(federation.server.broadcast(state, k)) for k in range(3)]
        update = federation.executor.worker.fit(Task(0, 0, federation.server.broadcast(state, 0), None, 1))
        assert tree.num_bytes(update.payload) == sizes[op][0]
    assert [a - b for a, b in zip(sizes["conv"], sizes["multi"], strict=True)] == [
        4 * groups * (10 - 2) for groups in (1, 2, 3)
    ]


@pytest.mark.parametrize("trim", [False, True], ids=["grouped", "trimmed"])
def test_what_stale_clients_had_frozen_is_averaged_in_groups_as_the_rest(trim, tmp_path):
    """One alone had its own version, but for the groups that it does not hold: these are those of the newest."""
    server = FedFusionServer(Fed2Server(), stale_clients=True)
    federation = grouped_fusion("multi", tmp_path, server, trim, cohort_size=1, num_rounds=6)
    steps, records = federation.run()
    has = {0: {2}, 1: {0, 2}, 2: {0, 1, 2}}
    assert {record.cohort for record in records[1:]} >= {(0,), (1,)}
    for before, after, record in zip(steps, steps[1:], records[1:], strict=False):
        (k,), state = record.cohort, before.state
        old, newest = state.stale.of(k)[0].params, state.average.params
        for name, found in after.state.frozen.items():
            rows = state.average.group_of_row.get(name)
            expected = old[name] if rows is None else torch.stack([
                (old if int(group) in has[k] else newest)[name][i] for i, group in enumerate(rows)
            ])  # fmt: skip
            assert torch.equal(found, expected), name
