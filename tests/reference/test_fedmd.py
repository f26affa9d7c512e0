"""FedMD: rounds by hand, local training without a digest, who is heard, what is sent, planted bugs."""

from functools import partial

import pytest
import torch
from float64_runs import assert_same, steps_of
from float64_runs import run as run_config
from harness import parties
from linear_rounds import goes_on
from prototype_rounds import (
    DOUBLE,
    LR,
    MOMENTUM,
    NAMES,
    assert_own,
    initial,
    logits_of,
    own_examples,
    split_by_class,
    trained,
    two_layers,
)

from fedfeat import tree
from fedfeat.algorithms import fedmd
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedmd import ClassScores, Consensus, FedMDClient, FedMDServer, FedMDState, distance
from fedfeat.client import ClientModule
from fedfeat.clients.worker import Worker
from fedfeat.errors import ClientError, ConfigError
from fedfeat.executors.stacked.fit import StackedClients
from fedfeat.seeding import derive_seed

STEPS = 2
PARTS = ((0, 1), (1,), (0, 2), (2, 1))
SERVER = {"source": "train_pool", "public_size": 11}
CLIENT = {"digest_epochs": 2, "digest_batch": 4, "digest_lr": 0.2}


def federation_of(folder, *, server=None, client=None, **plan):
    arguments = {"num_rounds": 6, "local_epochs": STEPS, "cohort_size": 3, "lr": LR, "momentum": MOMENTUM}
    arguments |= {"build_model": two_layers, "data": split_by_class(*PARTS)}
    half = partial(FedMDClient, personal=["all"], **(CLIENT | (client or {})))
    return parties(folder, client=half, server=server or FedMDServer(**SERVER), **(arguments | plan))


def digested(params, x, scores, k, round_idx, *, digest_epochs, digest_batch, digest_lr, digest_loss):
    """Steps of SGD with momentum on the distance from the scores, example by example and class by class."""
    order = torch.Generator().manual_seed(derive_seed(0, "turn", round_idx, k))
    params, velocity = dict(params), {name: 0.0 for name in params}
    for _ in range(digest_epochs):
        shuffled = torch.randperm(len(x), generator=order).tolist()
        for start in range(0, len(x), digest_batch):
            now = shuffled[start : start + digest_batch]
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
            loss = 0.0
            for i in now:
                z, f = logits_of(leaves, x[i : i + 1])[0], scores[i]
                p = f.exp() / f.exp().sum()
                q = z.exp() / z.exp().sum()
                loss = loss + {
                    "l1": (z - f).abs().sum() / 3, "mse": ((z - f) ** 2).sum() / 3, "kl": (p * (p / q).log()).sum(),
                }[digest_loss] / len(now)  # fmt: skip
            for name, slope in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                velocity[name] = MOMENTUM * velocity[name] + slope
                params[name] = params[name] - digest_lr * velocity[name]
    return params


def check(folder, *, pretrain_turns=1, digest_loss="l1", asked="cohort", decay=1.0, **changes):
    """Compare all clients' models and scores after every round; learning rates are those of round 0 times decay^t."""
    how = CLIENT | changes | {"digest_loss": digest_loss}
    server = FedMDServer(**SERVER, asked=asked)
    federation = federation_of(
        folder,
        server=server,
        client=how | {"pretrain_turns": pretrain_turns},
        lr_factor=lambda t, _: decay**t,
        **DOUBLE,
    )
    data, test = federation.data, federation.data.dataset.test
    own, turns, consensuses = [initial() for _ in PARTS], [0] * 4, 0
    for _, record in federation.rounds():
        if record.round_idx:
            t = record.round_idx - 1
            lr = LR * decay**t
            x = data.shared_examples("train_pool", 11, 0, t)[0].double()
            heard = [
                k for k in (record.cohort if asked == "cohort" else range(4)) if turns[k] >= pretrain_turns
            ]
            scores = sum(logits_of(own[k], x) for k in heard) / len(heard) if heard else None
            for k in record.cohort:
                if scores is not None and turns[k] >= pretrain_turns:
                    own[k] = digested(own[k], x, scores, k, t, **how | {"digest_lr": how["digest_lr"] or lr})
                    consensuses += 1
                own[k], turns[k] = trained(own[k], *own_examples(data, k), STEPS, lr=lr), turns[k] + 1
        for k in range(4):
            assert_own(record, k, logits_of(own[k], test.inputs.double()), test.labels)
            if turns[k]:
                for name in NAMES:
                    kept = federation.store.get(k).personal[name]
                    torch.testing.assert_close(kept, own[k][name], rtol=0, atol=1e-12)
    assert consensuses > 3


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"digest_loss": "mse", "pretrain_turns": 0}, {"digest_loss": "kl", "digest_batch": 100},
        {"asked": "all", "pretrain_turns": 2, "digest_epochs": 1}, {"digest_lr": None, "decay": 0.7},
    ],
    ids=["l1", "mse", "kl", "all", "the turn's rate"],
)  # fmt: skip
def test_rounds_of_some_of_unequal_clients_by_hand(changes, tmp_path):
    check(tmp_path, **changes)


def test_distances_of_two_examples():
    """Of (0, 0) and (0, 2) from (0, 2): 2 / 4, 4 / 4, and half of KL(softmax(0, 2) || (1/2, 1/2)) = .327."""
    logits, scores = torch.tensor([[0.0, 0], [0, 2]]), torch.tensor([[0.0, 2], [0, 2]])
    found = [float(distance(logits, scores, loss)) for loss in ("l1", "mse", "kl")]
    assert found == pytest.approx([0.5, 1.0, 0.327813 / 2], abs=1e-5)


PLAN = {"build_model": partial(two_layers, 0.3), "batch_size": 2, "local_epochs": 2, "num_rounds": 4}


@pytest.mark.parametrize("pretrain", [0, 1])
def test_without_a_digest_it_is_local_bit_for_bit(pretrain, tmp_path):
    how = {"digest_epochs": 0, "pretrain_turns": pretrain}
    found = federation_of(tmp_path / "a", client=how, **PLAN)
    records = found.run()[1]
    more = {"data": split_by_class(*PARTS), "lr": LR, "momentum": MOMENTUM, "cohort_size": 3}
    client = partial(ClientModule, personal=["all"])
    plain = parties(tmp_path / "b", client=client, server=FedAvgServer(), **PLAN, **more)
    others = plain.run()[1]
    assert len(plain.store) == len(found.store) == 4
    for k in plain.store:
        assert tree.sha256(found.store.get(k).personal) == tree.sha256(plain.store.get(k).personal)
    for mine, its in zip(records, others, strict=True):
        for name in ("train/loss", "personal/acc_mean", "compute/examples"):
            assert mine.metrics.get(name) == its.metrics.get(name)


def test_of_a_configuration_too(tmp_path):
    words = ("federation.cohort_size=2", "algorithm.public_share=0.2")
    mine = steps_of(tmp_path / "a", "algorithm=fedmd", "algorithm.client.digest_epochs=0", *words)[0]
    plain = steps_of(tmp_path / "b", "algorithm=local", *words)[0]
    assert set(mine.store) == set(plain.store)
    for k in plain.store:
        assert tree.sha256(mine.store.get(k).personal) == tree.sha256(plain.store.get(k).personal)


def test_one_client_alone_agrees_with_itself(tmp_path):
    """A consensus of one model is met: the digest moves nothing where the loss is smooth there."""
    ends = []
    for epochs in (0, 2):
        how = {"digest_epochs": epochs, "digest_loss": "mse", "pretrain_turns": 0}
        federation = federation_of(tmp_path / str(epochs), client=how, cohort_size=1, **DOUBLE)
        federation.run()
        ends.append([federation.store.get(k).personal for k in federation.store])
    for mine, its in zip(*ends, strict=True):
        for name in NAMES:
            torch.testing.assert_close(mine[name], its[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("asked", ["cohort", "all"])
def test_scores_go_up_inputs_and_their_mean_go_down_and_no_weights(asked, tmp_path):
    """11 inputs of 4 numbers and 11 times 3 scores of 4 bytes, once somebody who is asked has had a turn.

    Who answers without being in the cohort is sent the inputs alone.
    """
    sent, server = [], FedMDServer(**{**SERVER, "asked": asked})
    federation = federation_of(tmp_path, server=server)
    aggregate, hear = server.aggregate, server.hear
    server.aggregate = lambda state, updates: aggregate(state, sent.extend(u.payload for u in updates))
    heard = []
    server.hear = lambda state, inputs, answers: hear(
        state, inputs, (heard.append(a.payload) or a for a in answers)
    )
    up = down = 0
    had = set()
    for step, record in federation.rounds():
        assert step.state == FedMDState()
        old = had if asked == "all" else had & set(record.cohort)
        up += len(old) * 11 * 3 * 4
        down += len(record.cohort) * 11 * (4 + 3) * 4 if old else 0
        down += len(old - set(record.cohort)) * 11 * 4 * 4
        had |= set(record.cohort)
        assert (record.metrics["comm/up_bytes"], record.metrics["comm/down_bytes"]) == (up, down)
    assert sent == [Consensus()] * 18
    assert {tuple(answer.logits.shape) for answer in heard} == {(0, 3), (11, 3)}
    for k in federation.store:
        kept = federation.store.get(k)
        assert set(kept.personal) == set(NAMES)
        assert kept.memory.number > 0


def test_inputs_are_public_and_labels_are_never_read(tmp_path):
    """Other labels of the public set change nothing."""
    words = (
        "algorithm=fedmd",
        "data@public=synthetic",
        "public.loader.shape=[1,8,8]",
        "public.loader.num_train=40",
    )
    found = []
    for name, more in (("a", ()), ("b", ("public.loader.num_classes=3",))):
        experiment, _ = steps_of(tmp_path / name, *words, "public.loader.signal=0", *more)
        found.append([tree.sha256(experiment.store.get(k).personal) for k in experiment.store])
    assert found[0] == found[1]
    assert experiment.server.site.examples("public", 10**6, 0)[1].max() == 2


def test_what_a_digest_costs_is_counted(tmp_path):
    """Clients 0 to 3 digest 11 inputs twice in rounds 2 to 6 of those they take part in."""
    flops = []
    for epochs in (0, 2):
        federation = federation_of(tmp_path / str(epochs), client={"digest_epochs": epochs})
        records = federation.run()[1]
        flops.append(records[-1].metrics["compute/flops"])
    turns = [sum(k in record.cohort for record in records) - 1 for k in range(4)]
    module = federation.executor.worker.module
    each, examples = module.flops_per_example, records[-1].metrics["compute/examples"]
    # Nobody is asked for a score in a first turn.
    assert flops[0] == examples * each + sum(turns) * 11 * module.forward_flops_per_example
    assert flops[1] - flops[0] == sum(turns) * 22 * each


@pytest.mark.parametrize("skips", [True, False])
def test_who_cannot_answer_is_left_out_where_failures_are_skipped(skips, tmp_path, monkeypatch):
    answer = Worker._answer

    def mute(self, task, inputs):
        found = answer(self, task, inputs)
        broken = ClassScores(found.payload.logits * torch.nan) if task.client_id == 1 else found.payload
        return found._replace(payload=broken)

    monkeypatch.setattr(Worker, "_answer", mute)
    federation = federation_of(tmp_path, skip_failed=skips)
    if skips:
        assert len(federation.run()[1]) > 3
        return
    with pytest.raises(
        ClientError, match=r"^Client 1 failed in .*its answer holds values that are not finite"
    ):
        federation.run()


def test_a_run_goes_on_from_its_middle_with_models_and_turns(tmp_path):
    assert goes_on(partial(federation_of, **PLAN), tmp_path / "cut", tmp_path / "whole")


POOL = (
    "pool=hetero_cnn", "pool.names=[deep,wide,deep,wide]",
    "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8,6],dropout:0.3}",
    "+pool.models.wide={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[16]}",
)  # fmt: skip
STACKED = {
    "everyone": ("partition=quantity_skew", "federation.evaluate_local=true"),
    "own orders of the pixels": ("partition=permuted",),
    "few": ("federation.cohort_size=2", "federation.num_rounds=5", "scenario=stragglers"),
    "pool": (*POOL, "algorithm.client.digest_loss=mse", "federation.final_epochs=1"),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path, monkeypatch):
    fits, fit = [], StackedClients.fit
    monkeypatch.setattr(StackedClients, "fit", lambda self, *how: (fits.append(self), fit(self, *how))[1])
    options = ("algorithm=fedmd", "algorithm.client.digest_batch=16", *STACKED[name])
    expected = run_config(tmp_path / "serial", *options)
    assert not fits
    found = run_config(tmp_path / "stacked", *options, "executor=vectorized")
    assert_same(found, expected)
    assert found[1][-1].metrics["compute/flops"] == expected[1][-1].metrics["compute/flops"]
    assert fits


def test_a_pool_needs_no_common_width(tmp_path):
    experiment, steps = steps_of(tmp_path, "algorithm=fedmd", *POOL)
    assert "encoder.fc2.linear.weight" in experiment.store.get(0).personal
    assert "encoder.fc2.linear.weight" not in experiment.store.get(1).personal
    assert steps[-1][1].metrics["personal/acc_mean"] > 0
    assert experiment.server.newcomer_payload(steps[-1][0].state) == Consensus()


def test_batch_norm_sees_no_single_input(tmp_path):
    """Of 13 inputs in batches of 4 the last is left over; the digests of rounds 2 and 3 have 3 batches each."""
    words = ("model.norm=bn", "algorithm.client.digest_batch=4", "algorithm.server.public_size=13")
    seen = []
    for epochs in (0, 1):
        more = (*words, f"algorithm.client.digest_epochs={epochs}")
        experiment = steps_of(tmp_path / str(epochs), "algorithm=fedmd", *more)[0]
        kept = [experiment.store.get(k).personal for k in experiment.store]
        (name, *_) = [name for name in kept[0] if name.endswith("num_batches_tracked")]
        seen.append([int(personal[name]) for personal in kept])
    assert [b - a for a, b in zip(*seen, strict=True)] == [6] * 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["algorithm.public_share=null"], "server.source must be another without a public data"),
        (["algorithm.server.source=heldout"], "server.source must be another where partition.val"),
        (["algorithm.server.source=test_unlabelled"], "server.source must be one of public, held"),
        (["algorithm.client.personal=[body]"], r"personal must be \[all\] where clients send no weights"),
        (["structure=grouped"], "structure must be none for FedMD"),
    ],
)
def test_what_does_not_fit_is_refused(words, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        steps_of(tmp_path, "algorithm=fedmd", *words)


HEAR, UPLOAD, BEGIN, RECALL = FedMDServer.hear, FedMDClient.upload, FedMDClient.begin_turn, FedMDClient.recall


def summed(self, state, inputs, answers):
    found = HEAR(self, state, inputs, answers)
    return found if found.scores is None else found._replace(scores=found.scores * 2)


def forgetful(self, payload, memory):
    RECALL(self, payload, memory)
    self.take_personal({})


BUGS = {
    "the sum for the mean": (FedMDServer, "hear", summed),
    "away from the consensus": (fedmd, "distance", lambda *args: -distance(*args)),
    "turns are not counted": (
        FedMDClient, "upload", lambda self, turn, tensors: (Consensus(), fedmd.TurnCount(1))
    ),
    "everyone is heard": (fedmd, "_turns", lambda memory: 10),
    "no digest": (FedMDClient, "begin_turn", lambda self, turn: None),
    "the first model answers": (FedMDClient, "recall", forgetful),
    "every client shuffles alike": (
        FedMDClient, "begin_turn", lambda self, turn: BEGIN(self, turn._replace(client_id=0))
    ),
    "scores of other inputs": (
        FedMDServer, "broadcast", lambda self, state, k: Consensus(state.inputs, state.scores)
        if state.scores is None else Consensus(state.inputs, state.scores.roll(1, 0)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path, pretrain_turns=2)
