"""MOON and FedRoD beside public codes, where docs/deviations.md says that the two differ."""

from functools import partial

import pytest
import torch
from deviating import STEPS, rounds_of
from harness import LR, SIZES, make_data, network_of, parties, turn_of
from torch import nn
from torch.nn import functional

from fedfeat.algorithms.fedrod import FedRoDClient
from fedfeat.algorithms.moon import LastModels, MoonClient
from fedfeat.models.mlp import mlp

DATA = make_data()
TEST = DATA.dataset.test.inputs.double(), DATA.dataset.test.labels
MU, TAU = 1.5, 0.5


def two_layers():
    torch.manual_seed(1)
    return mlp((4,), 3, hidden=[5])


def initial():
    return [tensor.detach().double() for tensor in two_layers().parameters()]


def own_examples(k):
    """Inputs (n, 4), float64, and labels (n,)."""
    chosen, train = DATA.split.train.of(k), DATA.dataset.train
    return train.inputs[chosen].double(), train.labels[chosen]


def features(params, x):
    """What the last layer reads."""
    return (x @ params[0].T + params[1]).relu()


def stepped(params, loss):
    """One step of gradient descent."""
    leaves = [tensor.detach().requires_grad_() for tensor in params]
    slopes = torch.autograd.grad(loss(leaves), leaves)
    return [(tensor - LR * slope).detach() for tensor, slope in zip(leaves, slopes, strict=True)]


def far(found, expected):
    """The largest distance of tensors in order."""
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def contrast(seen, received, previous):
    """The term of MOON, of representations."""
    fixed = torch.stack([received, *previous])
    return functional.cross_entropy(
        (functional.cosine_similarity(seen, fixed, dim=2) / TAU).T, seen.new_zeros(len(seen)).long()
    )


def moon_turn(w, k, previous):
    """A turn; without a last model the term is log 1."""
    x, y = own_examples(k)
    own = w
    for _ in range(STEPS):

        def loss(params):
            z = features(params, x)
            term = contrast(z, features(w, x), [features(last, x) for last in previous])
            return functional.cross_entropy(z @ params[2].T + params[3], y) + MU * term

        own = stepped(own, loss)
    return own


def moon_rounds(cohorts, first):
    """w after each round; last models are ``first`` from the second round on, and nothing in the first."""
    w, last = initial(), {k: [model] for k, model in first.items()}
    for round_idx, cohort in enumerate(cohorts):
        ends = {k: moon_turn(w, k, last[k] if round_idx else []) for k in cohort}
        last |= {k: [end] for k, end in ends.items()}
        total = sum(SIZES[k] for k in cohort)
        w = [sum(SIZES[k] / total * ends[k][i] for k in cohort) for i in range(4)]
        yield w


EXACT = pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("size", "distances"),
    [(3, (EXACT, pytest.approx(0.514, abs=1e-3))), (1, pytest.approx((0.557, 0.520), abs=1e-3))],
)
def test_the_first_round_of_moon_has_no_term_and_later_starts_are_random(size, distances, tmp_path):
    """Distances of w after 4 rounds from ours, by either start, where everyone takes part or one client a round."""
    ends = []
    for start in ("received", "independent"):
        client = partial(MoonClient, mu=MU, tau=TAU, projection=None, start=start)
        plan = {"build_model": two_layers, "cohort_size": size, "num_rounds": 4}
        federation, states, cohorts = rounds_of(tmp_path / start, client=client, **plan)
        ends.append(list(states[-1].params.values()))
    module = federation.executor.worker.module
    first = {k: list(module._last_models(turn_of()._replace(client_id=k))[0].values()) for k in range(3)}
    code = list(moon_rounds(cohorts, first))[-1]
    assert tuple(far(end, code) for end in ends) == distances


def normed():
    torch.manual_seed(3)
    return network_of(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def moved(tensors, by):
    """Another network, whose running statistics are not those of a batch."""
    found = {}
    for name, tensor in tensors.items():
        wave = torch.arange(tensor.numel()).sin().view(tensor.shape)
        found[name] = tensor + (0.2 * by * wave.abs()).to(tensor)
    return found


def test_fixed_models_in_training_mode_see_by_the_batchs_statistics(tmp_path):
    """The term of one batch, of three networks that differ: of running statistics, and of the batch's."""
    client = partial(MoonClient, mu=MU, tau=TAU, projection=None)
    federation = parties(tmp_path, client=client, build_model=normed, precision="64-true")
    module = federation.executor.worker.module.double().train()
    x, y = own_examples(2)
    others = [moved(module.model.state_dict(), by) for by in (1, 2)]
    module.model.load_state_dict(others[0])
    module.begin_turn(turn_of(memory=LastModels((others[1],))))
    module.model.load_state_dict(normed().state_dict())
    ours = float(module.loss((x, y)).detach())
    terms = []
    for training in (False, True):
        networks = [normed().double().train(mode) for mode in (True, training, training)]
        for network, tensors in zip(networks[1:], others, strict=True):
            network.load_state_dict(tensors)
        seen = [network.last_input(x) for network in networks]
        plain = functional.cross_entropy(networks[0].last_layer(seen[0]), y).detach()
        terms.append(float(contrast(seen[0], seen[1], seen[2:]).detach()))
        found = float(plain) + MU * terms[-1]
        assert (abs(found - ours) < 1e-12) is not training
    assert terms == pytest.approx([0.655, 0.611], abs=1e-3)


def fedrod(folder, **plan):
    client = partial(FedRoDClient, softmax_scope="balanced")
    arguments = {"build_model": two_layers, "personal": True, "num_rounds": 1}
    federation, states, _ = rounds_of(folder, client=client, **(arguments | plan))
    kept = {k: list(federation.store.get(k).memory.params.values()) for k in range(3)}
    return federation, list(states[-1].params.values()), kept


def rod_turn(k, head, by="paper"):
    """Body and generic head, and the head of client k; by ``joint`` both heads have one loss and two predictions."""
    x, y = own_examples(k)
    prior = torch.bincount(y, minlength=3).double().log()
    own = [*initial(), *head]
    for _ in range(STEPS):

        def loss(params):
            z = features(params, x)
            generic = z @ params[2].T + params[3]
            z, base = (z, 0.0) if by == "joint" else (z.detach(), generic.detach())
            personal = base + z @ params[4].T + params[5]
            return functional.cross_entropy(generic + prior, y) + functional.cross_entropy(personal, y)

        own = stepped(own, loss)
    return own[:4], own[4:]


def test_a_personal_head_that_starts_from_the_generic_one(tmp_path):
    """Logits are twice the generic ones then; the head itself stands off ours by about its start."""
    _, _, kept = fedrod(tmp_path)
    start = initial()[2:]
    for k in range(3):
        assert far(kept[k], rod_turn(k, [torch.zeros_like(part) for part in start])[1]) < 1e-12
    z = features(initial(), TEST[0])
    once = z @ start[0].T + start[1]
    losses = [float(functional.cross_entropy(factor * once, TEST[1])) for factor in (1, 2)]
    assert losses == pytest.approx([1.041, 1.052], abs=1e-3)
    assert max(far(kept[k], rod_turn(k, start)[1]) for k in range(3)) == pytest.approx(0.448, abs=1e-3)


def test_counts_without_the_last_batch_can_lack_a_class(tmp_path):
    """Of 5 examples one is of its class alone: left out of a batch of 4, its own loss is infinite."""
    module = fedrod(tmp_path)[0].executor.worker.module
    y = torch.tensor([0, 0, 1, 1, 2])
    losses = []
    for counted in (y, y[:4]):
        counts = torch.bincount(counted, minlength=3)
        losses.append(float(functional.cross_entropy(torch.zeros(5, 3) + counts.log(), y)))
    module.ready(turn_of()._replace(class_counts=torch.bincount(y, minlength=3).numpy()))
    assert float(module.cross_entropy(torch.zeros(5, 3).double(), y)) == pytest.approx(losses[0])
    assert losses == [pytest.approx(1.055, abs=1e-3), torch.inf]


def test_one_loss_of_two_predictions_reaches_the_body(tmp_path):
    """Weights after a round, and the mean test loss of clients' own models."""
    _, w, kept = fedrod(tmp_path)
    zero = [torch.zeros_like(part) for part in initial()[2:]]
    means, losses = [], []
    for by in ("paper", "joint"):
        bodies, heads = zip(*(rod_turn(k, zero, by) for k in range(3)), strict=True)
        common = [
            sum(n / sum(SIZES) * part for n, part in zip(SIZES, parts, strict=True))
            for parts in zip(*bodies, strict=True)
        ]
        z = features(common, TEST[0])
        generic = z @ common[2].T + common[3] if by == "paper" else 0.0
        own = [functional.cross_entropy(generic + z @ head[0].T + head[1], TEST[1]) for head in heads]
        means.append(common)
        losses.append(float(torch.stack(own).mean()))
        if by == "paper":
            assert max(far(kept[k], heads[k]) for k in range(3)) < 1e-12
    assert far(w, means[0]) < 1e-12
    assert far(w, means[1]) == pytest.approx(0.0168, abs=1e-4)
    assert losses == pytest.approx([1.167, 1.212], abs=1e-3)
