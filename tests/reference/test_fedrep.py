"""FedRep through the real loop: by hand with momentum and weight decay, what it sends and costs, and planted bugs."""

from functools import partial

import pytest
import torch
from harness import SETTING, SIZES, parties, sample_cohort
from torch.nn import functional

from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedrep import FedRepClient
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.errors import ClientError, ConfigError
from fedfeat.models.mlp import mlp
from fedfeat.params import WeightedMean

LR, MOMENTUM, DECAY, ROUNDS = 0.2, 0.9, 0.1, 4
HEAD_EPOCHS, BODY_EPOCHS = 3, 2
W1, B1, W2, B2 = (
    f"{block}.linear.{kind}" for block in ("encoder.fc1", "head.fc2") for kind in ("weight", "bias")
)
BODY, HEAD = (W1, B1), (W2, B2)


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return mlp((4,), 3, hidden=[5])


def decaying(optimizer, head_epochs=HEAD_EPOCHS, kind=FedRepClient, **arguments):
    optimizer = partial(optimizer.func, **optimizer.keywords, weight_decay=DECAY)
    more = {} if kind is ClientModule else {"head_epochs": head_epochs}
    return kind(optimizer=optimizer, personal=["last"], **more, **arguments)


def federation_of(store_dir, *, client=decaying, weighting="samples", **plan):
    arguments = {"num_rounds": ROUNDS, "local_epochs": HEAD_EPOCHS + BODY_EPOCHS, "cohort_size": 2}
    arguments |= {"lr": LR, "momentum": MOMENTUM}
    server = FedAvgServer(weighting)
    return parties(store_dir, client=client, server=server, build_model=network, **(arguments | plan))


def reference_client(params, velocity, x, y, kept_epochs=HEAD_EPOCHS + BODY_EPOCHS):
    """Gradient steps with momentum on the head alone, then on the body alone; ``velocity`` changes."""
    params = dict(params)
    for epoch in range(kept_epochs):
        names = HEAD if epoch < HEAD_EPOCHS else BODY
        learned = {name: params[name].detach().requires_grad_() for name in names}
        full = params | learned
        hidden = (x @ full[W1].T + full[B1]).relu()
        loss = functional.cross_entropy(hidden @ full[W2].T + full[B2], y)
        for name, slope in zip(names, torch.autograd.grad(loss, list(learned.values())), strict=True):
            push = slope + DECAY * params[name]
            velocity[name] = MOMENTUM * velocity[name] + push if name in velocity else push
            params[name] = params[name] - LR * velocity[name]
    return params


def check(store_dir, keep=False, weighting="samples", **changes):
    """Compare body, heads and accuracies after every round; give the federation and its last record."""
    federation = federation_of(store_dir, keep_optimizer=keep, weighting=weighting, **changes)
    data, test = federation.data, federation.data.dataset.test
    initial = {name: tensor.double() for name, tensor in network().state_dict().items()}
    body = {name: initial[name] for name in BODY}
    heads = [{name: initial[name] for name in HEAD} for _ in range(3)]
    velocities = [{} for _ in range(3)]
    for step, record in federation.rounds():
        if record.round_idx:
            found = {}
            for k in sample_cohort(0, record.round_idx - 1, 3, 2):
                chosen, train = data.split.train.of(k), data.dataset.train
                x, y = train.inputs[chosen].double(), train.labels[chosen]
                if not keep:
                    velocities[k] = {}
                found[k] = reference_client(body | heads[k], velocities[k], x, y)
                heads[k] = {name: found[k][name] for name in HEAD}
            shares = {k: SIZES[k] if weighting == "samples" else 1 for k in found}
            body = {
                name: sum(shares[k] * own[name] for k, own in found.items()) / sum(shares.values())
                for name in BODY
            }
            for k in found:
                own = federation.store.get(k)
                assert set(own.personal) == set(HEAD)
                for name in HEAD:
                    torch.testing.assert_close(own.personal[name].double(), heads[k][name], rtol=0, atol=1e-5)
        assert set(step.state.params) == set(BODY)
        for name in BODY:
            torch.testing.assert_close(step.state.params[name].double(), body[name], rtol=0, atol=1e-5)
        hidden = (test.inputs.double() @ body[W1].T + body[B1]).relu()
        for row in record.clients:
            logits = hidden @ heads[row.client_id][W2].T + heads[row.client_id][B2]
            assert abs(row.personal_acc - (logits.argmax(1) == test.labels).double().mean().item()) < 1e-9
            assert abs(row.personal_loss - functional.cross_entropy(logits, test.labels).item()) < 1e-4
    return federation, record


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_rounds_by_hand(keep, weighting, tmp_path):
    check(tmp_path, keep, weighting)


def test_heads_are_never_sent_and_both_halves_cost_what_they_compute(tmp_path):
    """Body 4 5 + 5 = 25 numbers. Forward 2 (20 + 15) = 70; then 30 for a head, or 40 + 30 for a body."""
    federation, record = check(tmp_path)
    cohorts = [sample_cohort(0, t, 3, 2) for t in range(ROUNDS)]
    examples = sum(SIZES[k] for cohort in cohorts for k in cohort)
    assert record.metrics["comm/down_bytes"] == record.metrics["comm/up_bytes"] == ROUNDS * 2 * 25 * 4
    assert record.metrics["compute/examples"] == 5 * examples
    assert record.metrics["compute/flops"] == examples * (HEAD_EPOCHS * 100 + BODY_EPOCHS * 140)
    assert not set(federation.executor.worker.module.shared_keys) & set(HEAD)


def task(federation, num_steps):
    payload = federation.server.broadcast(federation.start().state, 2)
    return Task(2, 0, payload, None, num_steps)


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_a_turn_shorter_than_the_heads_epochs_leaves_the_body_as_it_came(num_steps, tmp_path):
    federation = federation_of(tmp_path)
    wanted = task(federation, num_steps)
    update = federation.executor.worker.fit(wanted)
    assert tree.sha256(update.payload) == tree.sha256(wanted.payload)
    assert not torch.equal(update.kept.personal[W2], network().state_dict()[W2])
    assert update.metrics["flops"] == num_steps * 8 * 100


def test_in_batches_an_epoch_is_a_whole_pass(tmp_path):
    """8 examples in batches of 3 are 3 steps; with 1 epoch for the head, step 4 is the body's, of 3 examples."""
    federation = federation_of(tmp_path, client=partial(decaying, head_epochs=1), batch_size=3)
    worker = federation.executor.worker
    short, longer = (worker.fit(task(federation, n)) for n in (3, 4))
    assert tree.sha256(short.kept) == tree.sha256(longer.kept)
    assert not torch.equal(short.payload.params[W1], longer.payload.params[W1])
    assert longer.metrics["flops"] == 8 * 100 + 3 * 140


def test_nothing_stays_frozen(tmp_path):
    federation = federation_of(tmp_path)
    module = federation.executor.worker.module
    federation.run()
    assert all(parameter.requires_grad for parameter in module.model.parameters())


@pytest.mark.parametrize("failing", [1, 4])
def test_a_turn_after_a_failed_one_trains_both_halves(failing, tmp_path):
    class Failing(FedRepClient):
        """Fails once, in the head's or the body's epochs."""

        left = failing

        def loss(self, batch):
            Failing.left -= 1
            if Failing.left == 0:
                raise RuntimeError("no luck")
            return super().loss(batch)

    federation = federation_of(tmp_path / "a", client=partial(decaying, kind=Failing))
    worker, wanted = federation.executor.worker, task(federation, 5)
    with pytest.raises(ClientError, match="no luck"):
        worker.fit(wanted)
    found, expected = worker.fit(wanted), federation_of(tmp_path / "b").executor.worker.fit(wanted)
    assert tree.sha256(found.payload) == tree.sha256(expected.payload)
    assert tree.sha256(found.kept) == tree.sha256(expected.kept)


def test_a_frozen_layer_of_the_network_stays_frozen(tmp_path):
    """Fixed embeddings, for example."""
    frozen = network()
    frozen.encoder.fc1.linear.bias.requires_grad_(False)
    module = decaying(partial(torch.optim.SGD, lr=LR), model=frozen)
    module._train_everything()
    assert [name for name, p in frozen.named_parameters() if not p.requires_grad] == [B1]


def all_at_once(self):
    self._train_everything()


def body_first(self):
    for parameter, is_head in self._trainable:
        parameter.requires_grad_(is_head != (self.current_epoch < self.head_epochs))


def decayed_body(self):
    """The head's epochs, in which the body's gradients are 0 instead of absent."""
    for parameter, _ in self._trainable:
        parameter.requires_grad_(True)
    for parameter, is_head in self._trainable:
        scale = float(is_head == (self.current_epoch < self.head_epochs))
        parameter.register_hook(lambda slope, scale=scale: slope * scale)


ADD = WeightedMean.add
BUGS = {
    "both halves together": [(FedRepClient, "on_train_epoch_start", all_at_once)],
    "body first": [(FedRepClient, "on_train_epoch_start", body_first)],
    "weight decay on the frozen half": [(FedRepClient, "on_train_epoch_start", decayed_body)],
    "mean without weights": [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
    "heads forgotten": [
        (FedRepClient, "take_personal", lambda self, personal: ClientModule.take_personal(self, {}))
    ],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    for owner, attribute, mutant in BUGS[bug]:
        monkeypatch.setattr(owner, attribute, mutant, raising=False)
    with pytest.raises(AssertionError):
        check(tmp_path)


def test_momentum_is_kept_between_turns_where_it_is_asked_for(tmp_path):
    kept, reset = (check(tmp_path / str(keep), keep)[0].store.get(2) for keep in (True, False))
    assert not torch.equal(kept.personal[W2], reset.personal[W2])
    assert reset.optimizer == {}
    assert sorted(kept.optimizer) == [f"{i}/momentum_buffer" for i in range(4)]


@pytest.mark.parametrize(
    ("frozen", "epochs", "half"),
    [
        ("last", 3, "personal"),
        ("last", 9, "personal"),
        ("body", 9, "shared"),
        ("body", 3, None),
        ("body", None, None),
    ],
)
def test_a_half_that_has_epochs_has_to_train(frozen, epochs, half):
    model = network()
    (model.last_layer if frozen == "last" else model.encoder).requires_grad_(False)
    client, setting = (
        decaying(partial(torch.optim.SGD, lr=LR), model=model),
        SETTING._replace(local_epochs=epochs),
    )
    if half is None:
        client.check(setting)
        return
    with pytest.raises(
        ConfigError, match=rf"^model\.freeze must leave something of what is {half} that trains"
    ):
        client.check(setting)


@pytest.mark.parametrize(("personal", "rule"), [([], "name"), (["all"], "leave")])
def test_both_halves_have_to_be(personal, rule):
    arguments = {"model": network(), "optimizer": partial(torch.optim.SGD, lr=LR), "head_epochs": HEAD_EPOCHS}
    with pytest.raises(
        ConfigError, match=rf"^algorithm\.client\.personal must {rule} something that trains for"
    ):
        FedRepClient(personal=personal, **arguments).check(SETTING._replace(local_epochs=9))
