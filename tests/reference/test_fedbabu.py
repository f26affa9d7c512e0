"""FedBABU through the real loop: heads that never move, bodies by hand with momentum and weight decay, fine-tuning."""

from functools import partial

import numpy as np
import pytest
import torch
from cut_runs import assert_goes_on
from float64_runs import assert_same
from float64_runs import run as run_configured
from harness import SETTING, SIZES, parties
from torch.nn import functional

from fedfeat import tree
from fedfeat.algorithms import fedbabu
from fedfeat.algorithms.fedbabu import FedBABUClient
from fedfeat.algorithms.fedfusion import FedFusionClient
from fedfeat.client import ClientModule, joined
from fedfeat.errors import ConfigError
from fedfeat.models.mlp import mlp
from fedfeat.params import WeightedMean

LR, MOMENTUM, DECAY, STEPS, ROUNDS, TUNING = 0.3, 0.9, 0.1, 3, 4, 5
W1, B1, W2, B2 = (
    f"{block}.linear.{kind}" for block in ("encoder.fc1", "head.fc2") for kind in ("weight", "bias")
)
BODY, HEAD = (W1, B1), (W2, B2)
TUNED = {"full": (*BODY, *HEAD), "body": BODY, "head": HEAD}


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return mlp((4,), 3, hidden=[5])


def decaying(optimizer, kind=FedBABUClient, **arguments):
    return kind(optimizer=partial(optimizer.func, **optimizer.keywords, weight_decay=DECAY), **arguments)


def federation_of(store_dir, fine_tune="full", fine_tune_lr=None, **plan):
    arguments = {
        "client": partial(decaying, fine_tune=fine_tune, fine_tune_lr=fine_tune_lr),
        "num_rounds": ROUNDS, "local_epochs": STEPS,
        "cohort_size": 2, "lr": LR, "momentum": MOMENTUM, "final_epochs": TUNING, "precision": "64-true",
    }  # fmt: skip
    return parties(store_dir, build_model=network, **(arguments | plan))


def logits(params, x):
    return (x @ params[W1].T + params[B1]).relu() @ params[W2].T + params[B2]


def trained(params, names, data, client_id, num_steps, lr=LR):
    """Full-batch steps with momentum and weight decay on some of the tensors."""
    chosen, params = data.split.train.of(client_id), dict(params)
    x, y = data.dataset.train.inputs[chosen].double(), data.dataset.train.labels[chosen]
    velocity = dict.fromkeys(names, 0.0)
    for _ in range(num_steps):
        leaves = {name: params[name].detach().requires_grad_() for name in names}
        loss = functional.cross_entropy(logits(params | leaves, x), y)
        for name, slope in zip(names, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            velocity[name] = MOMENTUM * velocity[name] + slope + DECAY * params[name]
            params[name] = params[name] - lr * velocity[name]
    return params


def accuracy(params, data):
    test = data.dataset.test
    return float((logits(params, test.inputs.double()).argmax(1) == test.labels).double().mean())


def losses(params, data):
    test = data.dataset.test
    return float(functional.cross_entropy(logits(params, test.inputs.double()), test.labels))


def check(store_dir, fine_tune="full", fine_tune_lr=None, **changes):
    """Bodies, the model that is scored, its head, and everyone's after the fine-tuning."""
    federation = federation_of(store_dir, fine_tune, fine_tune_lr, **changes)
    data, module = federation.data, federation.executor.worker.module
    params = {name: tensor.double() for name, tensor in network().state_dict().items()}
    initial = dict(params)
    for step, record in federation.rounds():
        if record.cohort:
            found = {k: trained(params, BODY, data, k, STEPS) for k in record.cohort}
            total = sum(SIZES[k] for k in found)
            params |= {name: sum(SIZES[k] * own[name] for k, own in found.items()) / total for name in BODY}
        assert list(step.state.params) == list(BODY)
        for name in BODY:
            torch.testing.assert_close(step.state.params[name], params[name], rtol=0, atol=1e-12)
        assert record.metrics["global/loss"] == pytest.approx(losses(params, data), abs=1e-12)
        assert "personal/acc_mean" not in record.metrics
        assert ("final_all/acc_mean" in record.metrics) == (record.round_idx == ROUNDS)
        if record.round_idx < ROUNDS:
            assert all(torch.equal(module.model.state_dict()[name], initial[name]) for name in HEAD)
    tuned = [trained(params, TUNED[fine_tune], data, k, TUNING, fine_tune_lr or LR) for k in range(3)]
    assert record.metrics["final_all/acc_mean"] == pytest.approx(
        np.mean([accuracy(own, data) for own in tuned])
    )
    # The module is the last client after its fine-tuning.
    for name, tensor in module.model.state_dict().items():
        torch.testing.assert_close(tensor, tuned[2][name], rtol=0, atol=1e-12)
    return federation, record


@pytest.mark.parametrize("fine_tune", TUNED)
def test_rounds_and_fine_tuning_of_unequal_clients_by_hand(fine_tune, tmp_path):
    check(tmp_path, fine_tune)


def test_fine_tuning_at_a_rate_of_its_own(tmp_path):
    check(tmp_path, fine_tune_lr=LR / 7)


def test_the_body_alone_crosses_the_wire_and_nothing_is_kept(tmp_path):
    """4 x 5 + 5 numbers of 8 bytes, two clients a round; the fine-tuning sends nothing."""
    federation, record = check(tmp_path)
    assert record.metrics["comm/down_bytes"] == record.metrics["comm/up_bytes"] == ROUNDS * 2 * 25 * 8
    assert not len(federation.store)


def test_a_model_after_a_fine_tuning_has_the_first_head_again(tmp_path):
    """The next client's turn, and the server's model."""
    federation = federation_of(tmp_path)
    worker, plan = federation.executor.worker, federation.plan
    sent = federation.server.broadcast(federation.start().state, 0)
    before = worker.score(sent)
    first = worker.fit(plan.task(1, 1, STEPS, sent, None))
    worker.fit(plan.task(ROUNDS, 0, TUNING, sent, None, final=True))
    assert not torch.equal(worker.module.model.state_dict()[W2], network().state_dict()[W2].double())
    again = worker.fit(plan.task(1, 1, STEPS, sent, None))
    assert tree.sha256(first.payload) == tree.sha256(again.payload)
    worker.fit(plan.task(ROUNDS, 0, TUNING, sent, None, final=True))
    np.testing.assert_array_equal(worker.score(sent).losses, before.losses)


def test_without_steps_in_the_fine_tuning_it_is_the_servers_model(tmp_path):
    """A last round, and so a fine-tuning, at a rate of zero."""
    federation = federation_of(tmp_path, lr_factor=lambda t, num_rounds: float(t < num_rounds - 1))
    final = federation.run()[1][-1].metrics
    assert (
        final["final_all/acc_mean"] == final["global/client_acc_mean"] == pytest.approx(final["global/acc"])
    )


def test_without_final_epochs_there_is_none(tmp_path):
    assert not any(
        "final_all" in name for name in federation_of(tmp_path, final_epochs=None).run()[1][-1].metrics
    )


SMALL = ("federation.cohort_size=2", "optimizer.momentum=0.9", "optimizer.weight_decay=0.01")


def test_with_nothing_fixed_it_is_fedavg_bit_for_bit(tmp_path):
    found, records = run_configured(tmp_path / "a", "algorithm=fedbabu", "algorithm.client.fixed=[]", *SMALL)
    expected, others = run_configured(tmp_path / "b", "algorithm=fedavg", "federation.final_epochs=5", *SMALL)
    assert tree.sha256(found) == tree.sha256(expected)
    for mine, its in zip(records, others, strict=True):
        assert {k: v for k, v in mine.metrics.items() if not k.startswith("time/")} == {
            k: v for k, v in its.metrics.items() if not k.startswith("time/")
        }


STACKED = {
    "full": ("algorithm.client.fine_tune=full",),
    "at a rate of its own": ("algorithm.client.fine_tune_lr=0.003",),
    "head": ("algorithm.client.fine_tune=head", "algorithm.client.fixed=[head]"),
    "a body that is fixed": ("algorithm.client.fixed=[encoder]", "algorithm.client.fine_tune=body"),
    "around FedAdam": ("algorithm/server=fedadam",),
    "in groups": ("algorithm/server=fed2", "structure=grouped", "structure.norm_shared=none"),
    "a personal layer beside it": ("algorithm.client.personal=[encoder.conv1]",),
}


@pytest.mark.parametrize("name", STACKED)
def test_stacked_clients_give_what_single_ones_give(name, tmp_path):
    words = ("algorithm=fedbabu", *STACKED[name], *SMALL)
    alone = run_configured(tmp_path / "serial", *words)
    stacked = run_configured(tmp_path / "stacked", *words, "executor=vectorized")
    assert_same(stacked, alone)
    final = [records[-1].metrics["final_all/acc_mean"] for _, records in (alone, stacked)]
    assert final[0] == pytest.approx(final[1], abs=1e-12)


def test_what_other_halves_freeze_stays_theirs(tmp_path):
    """FedFusion's extractor follows what is received; it is not the initial one."""
    both = partial(joined, halves=[FedBABUClient, FedFusionClient], op="single")
    federation = parties(tmp_path, client=both, build_model=partial(mlp, (4,), 3, hidden=[5]))
    module, start = federation.executor.worker.module, federation.start().state
    sent = federation.server.broadcast(start, 0)
    doubled = type(sent)({key: 2 * tensor for key, tensor in sent.params.items()})
    module.receive(doubled, None)
    for key, tensor in module.model.encoder.state_dict().items():
        assert torch.equal(module.fusion.frozen.network.state_dict()[key], tensor), key


def half(**arguments):
    return FedBABUClient(model=network(), optimizer=partial(torch.optim.SGD, lr=LR), **arguments)


def test_a_fine_tuning_of_a_frozen_head_is_refused():
    model = network()
    model.last_layer.requires_grad_(False)
    optimizer = partial(torch.optim.SGD, lr=LR)
    FedBABUClient(model=model, optimizer=optimizer, fine_tune="body")
    with pytest.raises(
        ConfigError, match=r"algorithm\.client\.fine_tune must be full or body where the head is frozen"
    ):
        FedBABUClient(model=model, optimizer=optimizer, fine_tune="head")


def test_kept_optimizers_and_heads_that_are_everything_or_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"federation\.opt_state must be reset for algorithm=any, .*'keep'"):
        half().check(SETTING._replace(keeps_optimizer=True))
    half().check(SETTING)
    with pytest.raises(
        ConfigError, match=r"algorithm\.client\.fixed must leave something that trains, .*'all'"
    ):
        half(fixed=["all"])
    with pytest.raises(
        ConfigError, match=r"algorithm\.client\.fixed must name parts of the network by .*'nose'"
    ):
        half(fixed=["nose"])


def test_steps_cost_no_gradient_of_the_head(tmp_path):
    """Forward 2 (20 + 15) = 70; back 40 for the body's weights and 30 through the head, none for the head's."""
    _, record = check(tmp_path)
    cohorts = [r.cohort for r in federation_of(tmp_path / "b").run()[1]]
    examples = STEPS * sum(SIZES[k] for cohort in cohorts for k in cohort)
    assert record.metrics["compute/flops"] == examples * (70 + 40 + 30)


@pytest.mark.parametrize("executor", ["serial", "vectorized"])
def test_a_run_goes_on_from_its_middle_and_fine_tunes(executor, cli, small, tmp_path, caplog):
    words = [*small, "algorithm=fedbabu", "federation.cohort_size=2"]
    words += ["trainer.num_threads=1", f"executor={executor}"]
    assert_goes_on(cli, words, tmp_path / "run", caplog)
    names, *_, last = (line.split(",") for line in (tmp_path / "run/clients.csv").read_text().splitlines())
    assert 0 <= float(dict(zip(names, last, strict=True))["final_acc"]) <= 1


ADD, BEGIN, TRAIN = WeightedMean.add, FedBABUClient.begin_turn, FedBABUClient._train


def slow_head(self, body, head):
    """The head trains at a rate of zero in the gradient, so that weight decay has it."""
    for parameter, is_head in self._trainable:
        parameter.requires_grad_(True)
        if is_head and not head:
            parameter.register_hook(lambda slope: 0 * slope)


def slow_rounds(self, turn):
    BEGIN(self, turn)
    self.lr = self.fine_tune_lr


BUGS = {
    "the head trains": (FedBABUClient, "_train", lambda self, body, head: TRAIN(self, True, True)),
    "weight decay on the head": (FedBABUClient, "_train", slow_head),
    "a fine-tuned head stays": (FedBABUClient, "receive", lambda self, payload, memory: (
        ClientModule.receive(self, payload, memory))),
    "fine-tuning is a round more": (FedBABUClient, "begin_turn", lambda self, turn: (
        BEGIN(self, turn._replace(final=False)))),
    "rounds are fine-tuning": (FedBABUClient, "begin_turn", lambda self, turn: (
        BEGIN(self, turn._replace(final=True)))),
    "rounds at the rate of the fine-tuning": (FedBABUClient, "begin_turn", slow_rounds),
    "the head is sent": (fedbabu, "DROPPED", "shared"),
    "mean without weights": (WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1)),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path, fine_tune_lr=LR / 7)
