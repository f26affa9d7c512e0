"""Rounds of Fed2 and Psi-Net as loops over groups in plain PyTorch and double precision.

Three clients of 3, 5 and 8 examples hold one, two and three classes. The network has two convolutions and two fully
connected layers; the first convolution and its batch norm are shared, each group has its part of everything else.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from harness import SIZES, make_data, parties, sample_cohort
from torch.nn import functional

from fedfeat.algorithms.fed2 import Fed2Server
from fedfeat.client import ClientModule
from fedfeat.clients.networks import separated
from fedfeat.data import transforms
from fedfeat.data.examples import Examples
from fedfeat.data.federated import FederatedData
from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.network import Network
from fedfeat.seeding import numpy_generator

LABELS = ([2, 2, 2], [0, 2, 2, 0, 2], [1, 2, 0, 0, 1, 2, 2, 1])
LR, STEPS, ROUNDS = 0.2, 2, 2
ONE_EACH, PAIR_AND_ONE = [[0], [1], [2]], [[1], [0, 2]]


class Setting(NamedTuple):
    """Everything that changes what the server or a client does."""

    class_map: list = ONE_EACH
    trim: bool = False
    pairing: str = "presence"
    weighting: str = "samples"
    group_weighting: str = "samples"
    scope: str = "all"
    cohort_size: int = 3
    personal: tuple = ()
    norm_group: str = "gn"
    boundary: str = "shared"


def grouped_data():
    """The tiny data as images of two channels and two pixels, with chosen labels.

    Quarters would put some of them exactly at a kink of the first ReLU.
    """
    made = make_data()
    noise = numpy_generator(0, "noise").uniform(-0.1, 0.1, (sum(SIZES), 4))
    made.dataset.train.inputs.add_(torch.from_numpy(noise.astype(np.float32)))
    labels = made.dataset.train.labels.clone()
    for k, own in enumerate(LABELS):
        labels[made.split.train.of(k)] = torch.tensor(own)
    train, test = made.dataset.train, made.dataset.test
    dataset = replace(
        made.dataset,
        train=Examples(train.inputs.view(-1, 2, 1, 2), labels),
        test=Examples(test.inputs.view(-1, 2, 1, 2), test.labels),
    )
    return FederatedData(dataset, made.split, transforms.none())


def base():
    blocks = [("conv1", conv_block(2, 6, 1)), ("conv2", conv_block(6, 6, 1))]
    return Network(blocks, fc_blocks(12, [6], 3), (2, 1, 2), 3)


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return make()


def federation_of(setting, store_dir, data=None, server=None, networks=None, **plan):
    data = data or grouped_data()
    options = {"class_map": setting.class_map, "trim": setting.trim, "norm_group": setting.norm_group}
    spec = GroupSeparation(depth=1, boundary_pairing=setting.boundary, **options)
    client = partial(ClientModule, personal=setting.personal, softmax_scope=setting.scope)
    return parties(
        store_dir,
        data=data,
        client=client,
        server=server or Fed2Server(setting.pairing, setting.weighting, setting.group_weighting),
        networks=networks or separated(spec, base, seeded, data.class_counts, (), 0),
        **(
            {"lr": LR, "num_rounds": ROUNDS, "local_epochs": STEPS, "cohort_size": setting.cohort_size} | plan
        ),
    )


def rows(tensor, group, num_groups):
    """Group g has the g-th part of every tensor but the last layer's, which has a row per class."""
    size = len(tensor) // num_groups
    return slice(group * size, (group + 1) * size)


def normalised(h, dims):
    mean, var = h.mean(dims, keepdim=True), h.var(dims, correction=0, keepdim=True)
    return (h - mean) / (var + 1e-5).sqrt()


def per_channel(values):
    return values[:, None, None]


def reference_logits(params, x, sets, norm_group):
    """Logits (B, 3), and what each block's norm reads, (B, 6, 1, 2)."""
    w = {name.replace("encoder.", "").replace("head.", ""): value for name, value in params.items()}
    first = functional.conv2d(x, w["conv1.conv.weight"], w["conv1.conv.bias"])
    h = normalised(first, (0, 2, 3)) * per_channel(w["conv1.norm.weight"]) + per_channel(w["conv1.norm.bias"])
    logits, second, row = [None] * 3, [], 0
    for g, classes in enumerate(sets):
        own = rows(h[0], g, len(sets))
        z = torch.einsum("bchw,oc->bohw", h.relu()[:, own], w["conv2.conv.weight"][own, :, 0, 0])
        second.append(z + per_channel(w["conv2.conv.bias"][own]))
        z = normalised(second[g], (1, 2, 3) if norm_group == "gn" else (0, 2, 3))
        z = z * per_channel(w["conv2.norm.weight"][own]) + per_channel(w["conv2.norm.bias"][own])
        z = (z.relu().flatten(1) @ w["fc1.linear.weight"][g].T + w["fc1.linear.bias"][g]).relu()
        for c in classes:
            logits[c] = z @ w["fc2.linear.weight"][row] + w["fc2.linear.bias"][row]
            row += 1
    return torch.stack(logits, 1), {"conv1": first.detach(), "conv2": torch.cat(second, 1).detach()}


def reference_fit(params, x, y, inside, sets, norm_group, prior):
    """Full-batch steps of SGD on the cross-entropy over the classes inside, with something added to their logits."""
    outside = torch.tensor([c not in inside for c in range(3)])
    kept = ("running_mean", "running_var", "num_batches_tracked")
    for _ in range(STEPS):
        learned = {k: v.detach().requires_grad_() for k, v in params.items() if not k.endswith(kept)}
        logits, seen = reference_logits(params | learned, x, sets, norm_group)
        loss = functional.cross_entropy((logits + prior).masked_fill(outside, -torch.inf), y)
        slopes = torch.autograd.grad(loss, list(learned.values()))
        params = params | {
            k: (v - LR * s).detach() for (k, v), s in zip(learned.items(), slopes, strict=True)
        }
        for block in ("conv1",) if norm_group == "gn" else ("conv1", "conv2"):
            mean, var, count = (f"encoder.{block}.norm.{name}" for name in kept)
            params[mean] = 0.9 * params[mean] + 0.1 * seen[block].mean((0, 2, 3))
            params[var] = 0.9 * params[var] + 0.1 * seen[block].var((0, 2, 3))
            params[count] = params[count] + 1
    return params


def is_personal(name, setting):
    return any(name.startswith(prefix) for prefix in setting.personal)


def reference_client(params, data, client_id, setting):
    """One client's turn; what it lacks in a trimmed network only gets no gradient here (Psi-Net Eq. 6)."""
    held = set(LABELS[client_id])
    kept = {c for classes in setting.class_map if held & set(classes) for c in classes}
    inside = {"all": kept if setting.trim else {0, 1, 2}, "kept_groups": kept, "present_classes": held}
    inside["balanced"] = held
    chosen, train = data.split.train.of(client_id), data.dataset.train
    x, y = train.inputs[chosen].double(), train.labels[chosen]
    prior = torch.zeros(3, dtype=torch.float64)
    if setting.scope == "balanced":
        prior += torch.bincount(y, minlength=3).log()
    return reference_fit(params, x, y, inside[setting.scope], setting.class_map, setting.norm_group, prior)


def mean(tensors, weights):
    return sum(w * tensor for w, tensor in zip(weights, tensors, strict=True)) / sum(weights)


def group_mean(name, old, found, setting):
    """Every group over those who hold a class of it (Psi-Net Eq. 8); ``found`` are the clients' tensors."""
    result, sets = old.clone(), setting.class_map
    for g, classes in enumerate(sets):
        counts = {k: sum(label in classes for label in LABELS[k]) for k in found}
        here = [k for k in found if counts[k] or (setting.pairing == "all" and not setting.trim)]
        weight = {"samples": SIZES, "uniform": [1] * 3, "class_count": counts}[setting.group_weighting]
        weights = [weight[k] for k in here]
        before = sum(map(len, sets[:g]))
        own = slice(before, before + len(classes)) if "fc2" in name else rows(old, g, len(sets))
        if sum(weights):
            result[own] = mean([found[k][own] for k in here], weights)
    return result


def reference_round(params, heads, data, cohort, setting):
    """The tensors after one round; ``heads`` keeps personal ones per client."""
    clients = {k: reference_client(params | heads.get(k, {}), data, k, setting) for k in cohort}
    for k, own in clients.items():
        heads[k] = {name: tensor for name, tensor in own.items() if is_personal(name, setting)}
    result = {}
    for name, old in params.items():
        found = {k: own[name] for k, own in clients.items()}
        if is_personal(name, setting):
            result[name] = old
        elif name.endswith("num_batches_tracked"):
            result[name] = max(found.values())
        elif name.startswith("encoder.conv1.") and setting.boundary == "shared":
            weights = [SIZES[k] if setting.weighting == "samples" else 1 for k in found]
            result[name] = mean(found.values(), weights)
        else:
            result[name] = group_mean(name, old, found, setting)
    return result


def check(setting, store_dir, tolerance=2e-5, **plan):
    """Run and compare every tensor after every round."""
    federation = federation_of(setting, store_dir, **plan)
    steps, records = federation.run()
    whole = federation.executor.worker.networks.build().state_dict()
    expected = {k: v.double() if v.is_floating_point() else v for k, v in whole.items()}
    heads = {}
    for round_idx, (step, record) in enumerate(zip(steps[1:], records[1:], strict=True)):
        cohort = sample_cohort(0, round_idx, 3, setting.cohort_size)
        assert record.cohort == cohort
        expected = reference_round(expected, heads, federation.data, cohort, setting)
        for name, found in step.state.params.items():
            torch.testing.assert_close(
                found.double(),
                expected[name].double(),
                rtol=0,
                atol=tolerance,
                msg=lambda m, name=name, r=round_idx: f"{name} {r} {m}",
            )
    assert set(steps[-1].state.params) == {n for n in whole if not is_personal(n, setting)}
    return federation, steps, heads


SETTINGS = {
    "fed2": Setting(),
    "fed2 unpaired": Setting(pairing="all", weighting="uniform"),
    "fed2 of its paper": Setting(weighting="uniform", group_weighting="uniform"),
    "fed2 by class count": Setting(group_weighting="class_count", scope="present_classes"),
    "unequal groups": Setting(PAIR_AND_ONE, scope="kept_groups"),
    "unequal groups, present": Setting(PAIR_AND_ONE, pairing="all", scope="present_classes"),
    "psi_net": Setting(trim=True),
    "psi_net uniform": Setting(trim=True, pairing="all", weighting="uniform", group_weighting="uniform"),
    "psi_net of unequal groups": Setting(PAIR_AND_ONE, trim=True, group_weighting="class_count"),
    "fed2, balanced": Setting(PAIR_AND_ONE, scope="balanced"),
    "psi_net, balanced": Setting(trim=True, scope="balanced"),
    "psi_net, present": Setting(PAIR_AND_ONE, trim=True, scope="present_classes"),
    "one client a round": Setting(cohort_size=1),
    "two clients a round, trimmed": Setting(trim=True, cohort_size=2, group_weighting="uniform"),
    "batch norm in groups": Setting(norm_group="bn"),
    "batch norm in groups, trimmed": Setting(PAIR_AND_ONE, trim=True, norm_group="bn", cohort_size=2),
    "paired boundary": Setting(boundary="paired", weighting="uniform"),
    "paired boundary, unpaired": Setting(PAIR_AND_ONE, boundary="paired", pairing="all", weighting="uniform"),
    "paired boundary, trimmed": Setting(trim=True, boundary="paired", group_weighting="class_count"),
    "paired boundary of unequal groups, two clients a round": Setting(
        PAIR_AND_ONE, trim=True, boundary="paired", cohort_size=2, norm_group="bn"
    ),
    "personal head": Setting(personal=("head",)),
    "personal head, trimmed": Setting(PAIR_AND_ONE, trim=True, personal=("head",), cohort_size=2),
}
