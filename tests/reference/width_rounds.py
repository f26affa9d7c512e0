"""Rounds of HeteroFL and FedRolex in whole tensors and masks, in plain PyTorch and double precision.

Three clients of 3, 5 and 8 examples hold one, two and three classes. What a client lacks is multiplied by 0 where our
networks do not have it. The network has two convolutions and two fully connected layers.
"""

from functools import partial
from typing import NamedTuple

import torch
from grouped_rounds import LABELS, LR, STEPS, grouped_data, seeded
from harness import SIZES, parties, sample_cohort
from torch.nn import functional

from fedfeat.algorithms.fedrolex import FedRolexServer
from fedfeat.algorithms.heterofl import HeteroFLClient, HeteroFLServer
from fedfeat.clients.width_levels import WidthLevels, WidthNetworks
from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.network import Network
from fedfeat.seeding import numpy_generator

WIDTHS = {"conv1": 6, "conv2": 5, "fc1": 4}
COUNTS = {1.0: (6, 5, 4), 0.5: (3, 3, 2), 0.3: (2, 2, 2), 0.1: (1, 1, 1)}
"""Channels of each layer at each level, counted by hand."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Setting(NamedTuple):
    """Everything that changes what the server or a client does."""

    levels: tuple = (1.0, 0.5, 0.3)
    rolling: bool = False
    dynamic: bool = False
    scaler: bool = True
    weighting: str = "uniform"
    output_rows: str = "holders"
    scope: str = "present_classes"
    norm: str = "none"
    cohort_size: int = 3
    momentum: float = 0.0
    rounds: int = 3

    def level(self, round_idx, client_id):
        number = client_id % len(self.levels)
        if self.dynamic:
            draws = numpy_generator(0, "level", round_idx, client_id)
            number = draws.integers(len(self.levels))
        return self.levels[number]


def base(norm="none", seed=5):
    blocks = [("conv1", conv_block(2, 6, 1, norm=norm, norm_groups=1))]
    blocks += [("conv2", conv_block(6, 5, 1, norm=norm, norm_groups=1))]
    return Network(blocks, fc_blocks(10, [4], 3), (2, 1, 2), 3)


def networks_of(setting):
    spec = WidthLevels(setting.levels, setting.dynamic, setting.scaler)
    return WidthNetworks(spec, lambda: seeded(lambda: base(setting.norm).double()), 0)


def federation_of(setting, store_dir, **plan):
    kind = FedRolexServer if setting.rolling else HeteroFLServer
    arguments = {
        "data": grouped_data(),
        "client": partial(HeteroFLClient, softmax_scope=setting.scope),
        "server": kind(setting.weighting, setting.output_rows),
        "networks": networks_of(setting),
        "precision": "64-true",
        "momentum": setting.momentum,
        "lr": LR,
        "num_rounds": setting.rounds,
        "local_epochs": STEPS,
        "cohort_size": setting.cohort_size,
    }
    return parties(store_dir, **(arguments | plan))


def held(layer, setting, round_idx, client_id):
    """0 or 1 for each channel of a layer."""
    width = WIDTHS[layer]
    count = COUNTS[setting.level(round_idx, client_id)][list(WIDTHS).index(layer)]
    found = torch.zeros(width, dtype=torch.float64)
    for i in range(count):
        found[(i + (round_idx if setting.rolling else 0)) % width] = 1
    return found


def masks_of(params, channels):
    """0 or 1 for each number of each tensor; ``channels`` are those of the layers."""
    masks = {}
    for name, tensor in params.items():
        layer = name.split(".")[1]
        mask = torch.ones_like(tensor, dtype=torch.float64)
        if layer != "fc2" and tensor.dim():
            mask *= channels[layer].view(-1, *[1] * (tensor.dim() - 1))
        before = {"conv2": "conv1", "fc1": "conv2", "fc2": "fc1"}.get(layer)
        if before and tensor.dim() > 1:
            # Two pixels of a channel stand together.
            reads = channels[before].repeat_interleave(2) if layer == "fc1" else channels[before]
            mask *= reads.view(1, -1, *[1] * (tensor.dim() - 2))
        masks[name] = mask
    return masks


def normed(z, w, layer, norm, held_channels, statistics=None):
    """Norm over the channels that are there; also the batch's own statistics."""
    if norm == "none":
        return z, {}
    if norm == "gn":
        count = held_channels.sum() * z[0, 0].numel()
        mean = z.sum((1, 2, 3), keepdim=True) / count
        # What is not there is 0 and counts in no variance.
        there = held_channels.view(1, -1, 1, 1)
        var = ((z - mean) ** 2 * there).sum((1, 2, 3), keepdim=True) / count
        own = {}
    else:
        mean, var = z.mean((0, 2, 3)), z.var((0, 2, 3), correction=0)
        unbiased = z.var((0, 2, 3), correction=1)
        prefix = f"encoder.{layer}.norm."
        own = {f"{prefix}running_mean": mean.detach(), f"{prefix}running_var": unbiased.detach()}
        if statistics:
            mean, var = (statistics[f"{prefix}{name}"] for name in STATISTICS[:2])
        mean, var = (value.view(1, -1, 1, 1) for value in (mean, var))
    z = (z - mean) / (var + 1e-5).sqrt()
    scale, shift = (w[f"encoder.{layer}.norm.{name}"].view(1, -1, 1, 1) for name in ("weight", "bias"))
    return z * scale + shift, own


def logits_of(w, x, setting, channels, rate=1.0, statistics=None):
    """Logits (B, 3), and the batch's statistics; ``rate`` divides what hidden layers give."""
    found = {}
    for layer in ("conv1", "conv2"):
        weight, bias = (w[f"encoder.{layer}.conv.{name}"] for name in ("weight", "bias"))
        z = torch.einsum("bchw,oc->bohw", x, weight[:, :, 0, 0]) + bias.view(1, -1, 1, 1)
        z, own = normed(z / rate, w, layer, setting.norm, channels[layer], statistics)
        found |= own
        x = z.relu() * channels[layer].view(1, -1, 1, 1)
    z = ((x.flatten(1) @ w["head.fc1.linear.weight"].T + w["head.fc1.linear.bias"]) / rate).relu()
    z = z * channels["fc1"]
    return z @ w["head.fc2.linear.weight"].T + w["head.fc2.linear.bias"], found


def reference_client(params, data, setting, round_idx, client_id):
    """What a client of whole tensors and zeros has after its steps, and its masks."""
    channels = {layer: held(layer, setting, round_idx, client_id) for layer in WIDTHS}
    masks = masks_of(params, channels)
    chosen, train = data.split.train.of(client_id), data.dataset.train
    x, y = train.inputs[chosen].double(), train.labels[chosen]
    inside = torch.zeros(3, dtype=torch.bool)
    inside[y if setting.scope == "present_classes" else slice(None)] = True
    rate = setting.level(round_idx, client_id) if setting.scaler else 1.0
    own = {name: tensor * masks[name] for name, tensor in params.items()}
    velocity = {name: torch.zeros_like(tensor) for name, tensor in own.items()}
    for _ in range(STEPS):
        own = {name: tensor.detach().requires_grad_() for name, tensor in own.items()}
        logits, _ = logits_of({n: t * masks[n] for n, t in own.items()}, x, setting, channels, rate)
        loss = functional.cross_entropy(logits.masked_fill(~inside, -torch.inf), y)
        for name, slope in zip(own, torch.autograd.grad(loss, list(own.values())), strict=True):
            velocity[name] = setting.momentum * velocity[name] + slope
        own = {name: (tensor - LR * velocity[name]).detach() for name, tensor in own.items()}
    return own, masks


def reference_round(params, data, setting, round_idx, cohort):
    """The whole tensors after a round."""
    sums = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    counts = {name: torch.zeros_like(tensor) for name, tensor in params.items()}
    for k in cohort:
        own, masks = reference_client(params, data, setting, round_idx, k)
        weight = SIZES[k] if setting.weighting == "samples" else 1.0
        for name, mask in masks.items():
            if name.startswith("head.fc2") and setting.output_rows == "holders":
                for label in set(range(3)) - set(LABELS[k]):
                    mask[label] = 0
            sums[name] += weight * mask * own[name]
            counts[name] += weight * mask
    return {
        name: torch.where(counts[name] > 0, sums[name] / counts[name].clamp(min=1e-9), old)
        for name, old in params.items()
    }


def everything():
    return {layer: torch.ones(width, dtype=torch.float64) for layer, width in WIDTHS.items()}


def statistics_of(params, data, setting):
    """Batch norm's statistics of the whole network on all training examples, one batch here."""
    x = data.dataset.train.inputs.double()
    return logits_of(params, x, setting, everything())[1]


def check(setting, store_dir, **plan):
    """Run and compare every tensor and the score after every round."""
    federation = federation_of(setting, store_dir, **plan)
    steps, records = federation.run()
    data, test = federation.data, federation.data.dataset.test
    start = federation.executor.worker.networks.build().state_dict()
    expected = {name: tensor for name, tensor in start.items() if not name.endswith(STATISTICS)}
    for round_idx, (step, record) in enumerate(zip(steps[1:], records[1:], strict=True)):
        cohort = sample_cohort(0, round_idx, 3, setting.cohort_size)
        assert record.cohort == cohort
        expected = reference_round(expected, data, setting, round_idx, cohort)
        statistics = statistics_of(expected, data, setting)
        assert step.state.params.keys() == expected.keys()
        found = step.state.params | {k: v for k, v in step.state.statistics.items() if v.dim()}
        assert found.keys() == (expected | statistics).keys()
        for name, its in (expected | statistics).items():
            torch.testing.assert_close(
                found[name], its, rtol=0, atol=1e-12, msg=lambda m, n=name, r=round_idx: f"{n} {r} {m}"
            )
        logits, _ = logits_of(expected, test.inputs.double(), setting, everything(), statistics=statistics)
        score = float(functional.cross_entropy(logits, test.labels))
        assert abs(record.metrics["global/loss"] - score) < 1e-9
    return federation, steps, records


SETTINGS = {
    "heterofl": Setting(),
    "heterofl, two of three": Setting(cohort_size=2, rounds=4),
    "heterofl, one of three": Setting((0.3, 0.5, 0.1), cohort_size=1, rounds=4),
    "dynamic": Setting(dynamic=True, rounds=4),
    "without scaler": Setting(scaler=False, momentum=0.5),
    "all rows, all logits": Setting(output_rows="all", scope="all"),
    "by samples": Setting(weighting="samples", levels=(0.5, 0.3, 0.5)),
    "batch norm": Setting(norm="bn", momentum=0.9),
    "group norm": Setting(norm="gn"),
    "fedrolex": Setting(rolling=True, rounds=7),
    "fedrolex, two of three": Setting((0.5, 0.3), rolling=True, cohort_size=2, rounds=4, momentum=0.9),
    "fedrolex by samples": Setting((0.5, 0.3), rolling=True, weighting="samples", output_rows="all"),
    "fedrolex, dynamic": Setting(rolling=True, dynamic=True, rounds=4),
    "fedrolex, batch norm": Setting((0.5, 1.0, 0.3), rolling=True, norm="bn"),
    "fedrolex, group norm": Setting((0.3, 0.5), rolling=True, norm="gn", rounds=5),
}
