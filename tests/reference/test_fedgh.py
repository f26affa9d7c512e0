"""FedGH: rounds by hand, a frozen header without server epochs, what is sent and kept, planted bugs."""

from functools import partial

import numpy as np
import pytest
import torch
from float64_runs import assert_stacks, steps_of
from harness import gradient, parties
from linear_rounds import goes_on
from prototype_rounds import (
    B1,
    B2,
    DOUBLE,
    HIDDEN,
    LR,
    MOMENTUM,
    W1,
    W2,
    assert_own,
    initial,
    logits_of,
    means_of,
    own_examples,
    split_by_class,
    trained,
    two_layers,
)

from fedfeat import tree
from fedfeat.algorithms import fedgh
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedgh import FedGHClient, FedGHServer, HeaderOrPrototypes
from fedfeat.client import ClientModule
from fedfeat.errors import ConfigError, UserError
from fedfeat.seeding import derive_seed

STEPS = 3
PARTS = ((0, 1), (1,), (0, 2), (2, 1))
SERVER = {"epochs": 3, "lr": 0.4, "batch_size": 2}


def federation_of(folder, *, server=None, personal=("body",), **plan):
    arguments = {"num_rounds": 5, "local_epochs": STEPS, "cohort_size": 2, "lr": LR, "momentum": MOMENTUM}
    arguments |= {"build_model": two_layers, "data": split_by_class(*PARTS)}
    client = partial(FedGHClient, personal=list(personal))
    return parties(folder, client=client, server=server or FedGHServer(**SERVER), **(arguments | plan))


def served(weight, bias, pairs, round_idx, *, epochs, lr, batch_size):
    """Steps of softmax regression in NumPy, in the orders of the round's address."""
    order = torch.Generator().manual_seed(derive_seed(0, "prototypes", round_idx))
    x, y = np.stack([mean for mean, _ in pairs]), np.array([c for _, c in pairs])
    for _ in range(epochs):
        for batch in torch.randperm(len(pairs), generator=order).split(batch_size):
            to_weight, to_bias = gradient(weight, bias, x[batch.numpy()], y[batch.numpy()])
            weight, bias = weight - lr * to_weight, bias - lr * to_bias
    return weight, bias


def check(folder, **changes):
    """Compare extractors, header and scores after every round."""
    server = FedGHServer(**(SERVER | changes))
    federation = federation_of(folder, server=server, **DOUBLE)
    test, own = federation.data.dataset.test, [initial() for _ in PARTS]
    header = {name: initial()[name] for name in (W2, B2)}
    for step, record in federation.rounds():
        pairs = []
        for k in record.cohort:
            x, y = own_examples(federation.data, k)
            own[k] = trained(own[k] | header, x, y, STEPS)
            means = means_of(own[k], x, y)
            pairs += [(means[c].numpy(), c) for c in sorted(means)]
            for name in (W1, B1):
                kept = federation.store.get(k).personal[name]
                torch.testing.assert_close(kept, own[k][name], rtol=0, atol=1e-12)
        if pairs:
            numbers = [tensor.numpy() for tensor in header.values()]
            found = served(*numbers, pairs, record.round_idx, **(SERVER | changes))
            header = dict(zip((W2, B2), map(torch.from_numpy, found), strict=True))
        for mine, its in zip(step.state.header.values(), header.values(), strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=1e-12)
        for k in range(len(PARTS)):
            assert_own(record, k, logits_of(own[k] | header, test.inputs.double()), test.labels)


@pytest.mark.parametrize("batch_size", [2, 100])
def test_rounds_of_some_of_unequal_clients_by_hand(batch_size, tmp_path):
    check(tmp_path, batch_size=batch_size)


def test_the_header_is_trained_where_the_server_has_epochs(tmp_path):
    """Its bits change in every round; without epochs none does."""
    for epochs, kinds in ((2, 6), (0, 1)):
        steps = federation_of(tmp_path / str(epochs), server=FedGHServer(epochs=epochs)).run()[0]
        assert len({tree.sha256(step.state.header) for step in steps}) == kinds
        first = [steps[0].state.header[name] for name in ("weight", "bias")]
        assert all(
            torch.equal(mine, two_layers().state_dict()[name])
            for mine, name in zip(first, (W2, B2), strict=True)
        )


class Deaf(FedAvgServer):
    """Never averages."""

    def aggregate(self, state, updates):
        return state


PLAN = {"build_model": partial(two_layers, 0.3), "batch_size": 2, "local_epochs": 2, "cohort_size": 2}


def test_without_server_epochs_clients_train_under_a_frozen_common_header_bit_for_bit(tmp_path):
    """As clients of FedAvg do whose bodies are personal, with a server that never averages."""
    found = federation_of(tmp_path / "a", server=FedGHServer(epochs=0), **PLAN)
    left = found.run()[1]
    client = partial(ClientModule, personal=["body"])
    more = {"data": split_by_class(*PARTS), "lr": LR, "momentum": MOMENTUM, "num_rounds": 5}
    plain = parties(tmp_path / "b", client=client, server=Deaf(), **PLAN, **more)
    right = plain.run()[1]
    assert set(found.store) == set(plain.store)
    for k in plain.store:
        assert tree.sha256(found.store.get(k).personal) == tree.sha256(plain.store.get(k).personal)
    for mine, its in zip(left, right, strict=True):
        for name in ("train/loss", "personal/acc_mean"):
            assert mine.metrics.get(name) == its.metrics.get(name)


def test_headers_go_down_prototypes_go_up_and_extractors_stay(tmp_path):
    """Down 3 * 5 + 3 numbers of 4 bytes; up m classes of 5 numbers and 8 bytes."""
    sent, server = [], FedGHServer(**SERVER)
    federation = federation_of(tmp_path, server=server)
    aggregate = server.aggregate
    server.aggregate = lambda state, updates: aggregate(state, (sent.append(u.payload) or u for u in updates))
    up = down = 0
    for _, record in federation.rounds():
        down += len(record.cohort) * 18 * 4
        up += sum(len(PARTS[k]) * (8 + HIDDEN * 4) for k in record.cohort)
        assert (record.metrics["comm/up_bytes"], record.metrics["comm/down_bytes"]) == (up, down)
    assert sent
    assert all(payload.header == {} for payload in sent)
    for k in federation.store:
        assert set(federation.store.get(k).personal) == {W1, B1}
        assert federation.store.get(k).memory is None


def test_what_the_server_computes_is_counted(tmp_path):
    """7 pairs, 3 * 5 products, forward and for the weights' gradient, 2 operations each."""
    flops = []
    for epochs in (0, 3):
        server = FedGHServer(**(SERVER | {"epochs": epochs}))
        federation = federation_of(tmp_path / str(epochs), server=server, num_rounds=1, cohort_size=4)
        flops.append(federation.run()[1][-1].metrics["compute/flops"])
    assert flops[1] - flops[0] == 3 * 7 * 15 * 2 * 2


def test_a_round_without_an_update_trains_nothing(tmp_path):
    federation = federation_of(tmp_path)
    state = federation.run()[0][-1].state
    before = tree.sha256(state)
    assert federation.server.aggregate(state, iter([])) == state._replace(round_idx=state.round_idx + 1)
    payload = HeaderOrPrototypes(state.header)
    update = next(iter(federation.executor.map("fit", [federation.plan.task(0, 0, 1, payload, None)])))
    assert tree.sha256(federation.server.aggregate(state, iter([update])).header) != tree.sha256(state.header)
    assert tree.sha256(state) == before


def test_a_run_goes_on_from_its_middle_with_its_extractors(tmp_path):
    assert goes_on(federation_of, tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "everyone": ("partition=quantity_skew", "federation.evaluate_local=true"),
    "few": ("federation.cohort_size=2", "federation.num_rounds=4", "scenario=stragglers"),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path):
    options = ("algorithm=fedgh", "algorithm.server.epochs=5", *STACKED[name])
    assert_stacks(tmp_path, *options)


POOL = (
    "pool=hetero_cnn", "pool.names=[deep,wide,deep,wide]",
    "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8,6]}",
    "+pool.models.wide={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[16]}",
)  # fmt: skip


@pytest.mark.parametrize("algorithm", ["fedproto", "fedtgp", "fedgh"])
def test_networks_of_unequal_widths_need_a_common_one(algorithm, tmp_path):
    """Which pool.head_width gives them."""
    with pytest.raises(
        UserError, match=rf"algorithm={algorithm} needs networks .* 0 reads 6 and .* 1 reads 16\."
    ):
        steps_of(tmp_path / "a", f"algorithm={algorithm}", *POOL)
    experiment, steps = steps_of(tmp_path / "b", f"algorithm={algorithm}", *POOL, "pool.head_width=5")
    state = steps[-1][0].state
    common = state.header["weight"] if algorithm == "fedgh" else state.prototypes
    assert common.shape == (10, 5)
    assert "encoder.fc2.linear.weight" in experiment.store.get(0).personal
    assert "encoder.fc2.linear.weight" not in experiment.store.get(1).personal


def test_a_header_fits_last_layers_of_other_names(tmp_path):
    """head.fc3 of the deep networks, head.fc2 of the others; it begins as the first client's."""
    pool = [*POOL[:-1], POOL[-1].replace("[16]", "[6]")]
    experiment, steps = steps_of(tmp_path, "algorithm=fedgh", *pool)
    first = experiment.executor.worker.networks.build("deep").double().last_layer
    assert torch.equal(steps[0][0].state.header["weight"], first.weight)
    module = experiment.executor.worker.module_of(1)
    module.receive(experiment.server.broadcast(steps[-1][0].state, 1), None)
    assert torch.equal(module.model.head.fc2.linear.weight, steps[-1][0].state.header["weight"])


@pytest.mark.parametrize("algorithm", ["fedproto", "fedtgp", "fedgh"])
@pytest.mark.parametrize("structure", ["grouped", "trimmed"])
def test_grouped_networks_are_refused(structure, algorithm, tmp_path):
    with pytest.raises(
        ConfigError, match=r"structure must be none where clients send prototypes, .* it is 'grouped'\."
    ):
        steps_of(tmp_path, f"algorithm={algorithm}", f"structure={structure}")


@pytest.mark.parametrize("personal", [[], ["all"], ["head"]])
def test_other_personal_parts_are_refused(personal, tmp_path):
    with pytest.raises(
        ConfigError, match=r"personal must be \[body\] for FedGH, whose header is the last layer"
    ):
        federation_of(tmp_path, personal=personal)


RECEIVE, UPLOAD, STACK, DESCEND = FedGHClient.receive, FedGHClient.upload, fedgh.stacked, fedgh.descend


def shifted(prototypes):
    found = STACK(prototypes)
    return found and found._replace(classes=(found.classes + 1) % 3)


def forgetful(self, payload, memory):
    self.take_personal({})
    RECEIVE(self, payload, memory)


def early(self, turn, tensors):
    self.take_personal({})
    return UPLOAD(self, turn, tensors)


BUGS = {
    "its optimizer holds another module": (
        fedgh, "descend", lambda layer, loss, pairs, **rest: DESCEND(two_layers(), loss, pairs, **rest)
    ),
    "labels off by one": (fedgh, "stacked", shifted),
    "the header stays with the client": (FedGHClient, "receive", lambda self, payload, memory: None),
    "extractor forgotten": (FedGHClient, "receive", forgetful),
    "prototypes of the first extractor": (FedGHClient, "upload", early),
    "header drawn anew": (
        fedgh.FedGHServer, "broadcast",
        lambda self, state, k: HeaderOrPrototypes({key: torch.zeros_like(w) for key, w in state.header.items()}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path)
