"""The fit of all clients after the last round: what it trains, what it reports, and that nothing of it is left."""

from functools import partial

import numpy as np
import pytest
import torch
from harness import SIZES, averaged, local_steps, params_of, parties, zeros
from torch import nn

from fedfeat.algorithms.fedhenn import FedHeNNClient
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.algorithms.fedrep import FedRepClient
from fedfeat.client import ClientModule
from fedfeat.models.blocks import named_layers
from fedfeat.models.network import Network
from fedfeat.params import snapshot
from fedfeat.tree import sha256

WEIGHTS = np.array(SIZES)


def scores(data, params):
    """Accuracy and loss of a softmax regression on the six test examples, which are every client's test part."""
    x, y = data.dataset.test.inputs.double().numpy(), data.dataset.test.labels.numpy()
    logits = x @ params[0].T + params[1]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    return (logits.argmax(1) == y).mean(), losses.mean()


def untimed(metrics):
    return {key: value for key, value in metrics.items() if not key.startswith("time/")}


def test_everyone_trains_once_more_from_what_the_server_has_by_then(tmp_path):
    """Full batches: an epoch is a step. Two rounds of one client, then two steps of all three, computed by hand."""
    federation = parties(tmp_path, final_epochs=2, cohort_size=1)
    steps, records = federation.run()
    params = zeros()
    for record in records[1:]:
        params = averaged(params, federation.data, record.cohort, None, num_steps=1)
    np.testing.assert_allclose(params_of(steps[-1])[0], params[0], atol=1e-6)
    expected = [scores(federation.data, local_steps(params, federation.data, k, 2)) for k in range(3)]
    rows = records[-1].clients
    assert [row.final_acc for row in rows] == [acc for acc, _ in expected]
    assert [row.final_loss for row in rows] == pytest.approx([loss for _, loss in expected], abs=1e-6)
    assert len({row.final_loss for row in rows}) == 3
    accuracies = np.array([acc for acc, _ in expected])
    metrics = records[-1].metrics
    assert metrics["final_all/acc_mean"] == pytest.approx(accuracies.mean())
    assert metrics["final_all/acc_weighted"] == pytest.approx((accuracies * WEIGHTS).sum() / 16)
    assert metrics["final_all/acc_worst"] == accuracies.min()
    for record in records[:-1]:
        assert not any(key.startswith("final_all") for key in record.metrics)
        assert all(row.final_acc is row.final_loss is None for row in record.clients)


def own_head(**arguments):
    return ClientModule(personal=["head"], **arguments)


def two_layers():
    encoder = [("body", named_layers([("fc", nn.Linear(4, 5))]))]
    return Network(encoder, [("top", named_layers([("fc", nn.Linear(5, 3))]))], (4,), 3)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("client", "server"),
    [(ClientModule, None), (own_head, None), (FedHeNNClient, FedHeNNHeteroServer(rad_size=6, eta0=1.0))],
    ids=["fedavg", "own_head", "fedhenn_hetero"],
)
def test_nothing_of_it_is_kept_or_counted(tmp_path, client, server, keep):
    """State, memories, counters and all other metrics are those of a run without it, bit for bit."""
    found = []
    for epochs in (None, 3):
        common = {"client": client, "server": server, "build_model": two_layers, "keep_optimizer": keep}
        federation = parties(
            tmp_path / str(epochs), final_epochs=epochs, cohort_size=2, momentum=0.5, **common
        )
        steps, records = federation.run()
        others = {k: v for k, v in untimed(records[-1].metrics).items() if not k.startswith("final_all")}
        memories = [federation.store.get(k) for k in range(3)]
        found.append((sha256([steps[-1].state, memories]), others))
        assert ("final_all/acc_mean" in records[-1].metrics) == (epochs is not None)
    assert found[0] == found[1]


def test_a_resumed_run_repeats_it(tmp_path):
    federation = parties(tmp_path, final_epochs=2, cohort_size=2, batch_size=2)
    steps, records = federation.run()
    _, again = federation.run(steps[1])
    assert untimed(again[-1].metrics) == untimed(records[-1].metrics)
    assert again[-1].clients == records[-1].clients
    assert federation.run(steps[-1]) == ([], [])


@pytest.mark.parametrize(("final_epochs", "body_trains"), [(2, False), (3, True)])
def test_fedrep_trains_heads_alone_where_no_more_epochs_are_left(tmp_path, final_epochs, body_trains):
    """With 2 epochs of the head a third one is the body's."""
    ends = []

    class Recording(FedRepClient):
        def on_train_end(self):
            super().on_train_end()
            ends.append(snapshot(self.model))

    client = partial(Recording, head_epochs=2, personal=["last"])
    federation = parties(
        tmp_path,
        client=client,
        build_model=two_layers,
        num_rounds=1,
        local_epochs=3,
        final_epochs=final_epochs,
    )
    steps, _ = federation.run()
    assert len(ends) == 6  # three in the round, three after it
    shared = steps[-1].state.params
    assert shared
    for found in ends[3:]:
        same = all(torch.equal(found[key], tensor) for key, tensor in shared.items())
        assert same != body_trains
    heads = [{key: end[key] for key in end.keys() - shared.keys()} for end in ends]
    for before, after in zip(heads[:3], heads[3:], strict=True):
        assert not any(torch.equal(before[key], after[key]) for key in before)


def test_a_failed_client_stops_the_run_or_has_no_score(tmp_path):
    class Failing(ClientModule):
        def loss(self, batch):
            if len(batch[1]) == 5:
                raise RuntimeError("no luck")
            return super().loss(batch)

    common = {"client": Failing, "num_rounds": 0, "final_epochs": 1}
    with pytest.raises(Exception, match=r"^Client 1 failed in round 1 .*no luck"):
        parties(tmp_path / "a", **common).run()
    _, (record,) = parties(tmp_path / "b", skip_failed=True, **common).run()
    assert [row.final_acc is None for row in record.clients] == [False, True, False]


def test_excluded_clients_are_in_no_round_but_in_every_score(tmp_path):
    """Client 1 is scored with what it would receive, after the last round as well."""
    federation = parties(tmp_path, excluded=frozenset({1}), cohort_size=2, final_epochs=1)
    steps, records = federation.run()
    assert [record.cohort for record in records[1:]] == [(0, 2), (0, 2)]
    params = zeros()
    for _ in range(2):
        params = averaged(params, federation.data, (0, 2), [3, 8], num_steps=1)
    np.testing.assert_allclose(params_of(steps[-1])[0], params[0], atol=1e-6)
    rows = records[-1].clients
    expected = scores(federation.data, params)
    assert [row.client_id for row in rows] == [0, 1, 2]
    assert [row.global_acc for row in rows] == [expected[0]] * 3
    assert (rows[1].final_acc, rows[1].final_loss) == (expected[0], pytest.approx(expected[1], abs=1e-6))
    assert rows[0].final_loss == pytest.approx(
        scores(federation.data, local_steps(params, federation.data, 0, 1))[1], abs=1e-6
    )
    assert rows[1].train_loss is None


def test_work_after_the_last_round_by_hand(tmp_path):
    """8 examples in batches of 3 are 3 steps an epoch: 2 epochs 6 steps, half a one 2, a tenth still one."""
    plan = parties(tmp_path, batch_size=3, num_rounds=5, lr_factor=lambda r, n: 1 / (1 + r)).plan
    for epochs, steps in ((2, 6), (0.5, 2), (0.1, 1)):
        assert type(plan)(**{**vars(plan), "final_epochs": epochs}).final_steps(8) == steps
    assert plan.task(5, 2, 6, "payload", None).lr_factor == 1 / 5  # of the last round
    none = parties(tmp_path, batch_size=3, num_rounds=0, lr_factor=lambda r, n: 1 / (1 + r)).plan
    assert none.task(0, 2, 6, "payload", None).lr_factor == 1  # of the first, where there are no rounds
    assert not plan.ends(5)
    assert [type(plan)(**{**vars(plan), "final_epochs": 1}).ends(r) for r in (4, 5)] == [False, True]


def test_it_is_of_the_round_after_the_last_at_the_last_rounds_learning_rate(tmp_path):
    """Two rounds at factors 1 and 1/2; then examples come in an order that neither round had."""
    turns = []

    class Recording(ClientModule):
        def begin_turn(self, turn):
            turns.append((turn, []))

        def loss(self, batch):
            turns[-1][1].append(tuple(batch[0][0].tolist()))
            return super().loss(batch)

    parties(
        tmp_path,
        client=Recording,
        final_epochs=1,
        batch_size=1,
        lr_factor=lambda round_idx, num_rounds: 0.5**round_idx,
    ).run()
    for k in range(3):
        own = [(turn.round_idx, turn.lr) for turn, _ in turns if turn.client_id == k]
        assert own == [(0, 0.5), (1, 0.25), (2, 0.25)]
    orders = [tuple(order) for turn, order in turns if turn.client_id == 2]
    assert [len(order) for order in orders] == [8, 8, 8]
    assert len(set(orders)) == 3
