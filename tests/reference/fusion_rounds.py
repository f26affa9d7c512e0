"""Rounds of FedFusion (Alg. 1) in plain PyTorch and double precision.

Three clients of 3, 5 and 8 examples. The extractor is a convolution to three channels with batch norm, the classifier a
linear layer, so E_l works with the statistics of its batch and E_g with those that it came with.
"""

from functools import partial
from typing import NamedTuple

import torch
from grouped_rounds import grouped_data, seeded
from harness import SIZES, parties, sample_cohort
from torch.nn import functional

from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedfusion import FedFusionClient, FedFusionServer
from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.network import Network

LR, STEPS, ROUNDS, CHANNELS = 0.2, 2, 4, 3
CONV, NORM, HEAD = "encoder.conv1.conv", "encoder.conv1.norm", "head.fc1.linear"
LAMBDA, W_CONV = "fusion.operator.lambdas", "fusion.operator.conv"
BUFFERS = (f"{NORM}.running_mean", f"{NORM}.running_var", f"{NORM}.num_batches_tracked")


class Setting(NamedTuple):
    """Everything that changes what the server or a client does."""

    op: str = "multi"
    ema: float = 0.0
    eval_eg: str = "prev"
    stale_clients: bool = False
    lambda_init: float = 0.25
    concat: str = "global_first"
    conv_bias: bool = True
    weighting: str = "samples"
    cohort_size: int = 2


SETTINGS = {
    "multi": Setting(),
    "multi with moving average": Setting(ema=0.75),
    "multi from the local features": Setting(lambda_init=0.0, ema=0.9),
    "multi, own E_g": Setting(ema=0.5, eval_eg="self"),
    "multi, stale": Setting(ema=0.5, stale_clients=True, cohort_size=1),
    "multi, two stale of three": Setting(ema=0.5, stale_clients=True),
    "conv, stale, uniform": Setting("conv", stale_clients=True, weighting="uniform"),
    "single": Setting("single", ema=0.75),
    "single, own E_g, all clients": Setting("single", eval_eg="self", cohort_size=3, weighting="uniform"),
    "conv": Setting("conv", ema=0.75),
    "conv, local half first": Setting("conv", concat="local_first", conv_bias=False),
    "conv, own E_g, stale": Setting("conv", eval_eg="self", stale_clients=True, cohort_size=1),
}


def network():
    def build():
        blocks = [("conv1", conv_block(2, CHANNELS, 1, norm="bn"))]
        return Network(blocks, fc_blocks(2 * CHANNELS, [], 3), (2, 1, 2), 3)

    return seeded(build)


def federation_of(setting, store_dir, client=FedFusionClient, server=None, more=None, **plan):
    options = {"op": setting.op, "lambda_init": setting.lambda_init, "concat": setting.concat}
    options |= {"conv_bias": setting.conv_bias} | (more or {})
    average = FedAvgServer(setting.weighting)
    arguments = {"lr": LR, "num_rounds": ROUNDS, "local_epochs": STEPS, "cohort_size": setting.cohort_size}
    return parties(
        store_dir,
        data=grouped_data(),
        client=partial(client, **options),
        server=server or FedFusionServer(average, setting.ema, setting.eval_eg, setting.stale_clients),
        build_model=network,
        **(arguments | plan),
    )


def extract(params, x, mean, var):
    """E(x) from what its convolution gives, normalised by a mean and a variance per channel (C,)."""
    z = torch.einsum("bchw,oc->bohw", x, params[f"{CONV}.weight"][:, :, 0, 0])
    z = z + params[f"{CONV}.bias"][:, None, None]
    mean = z.mean((0, 2, 3)) if mean is None else mean
    biased = z.var((0, 2, 3), correction=0) if var is None else var
    normed = (z - mean[:, None, None]) / (biased + 1e-5).sqrt()[:, None, None]
    normed = normed * params[f"{NORM}.weight"][:, None, None] + params[f"{NORM}.bias"][:, None, None]
    return normed.relu(), z.detach()


def with_statistics(params, x):
    return extract(params, x, params[f"{NORM}.running_mean"], params[f"{NORM}.running_var"])[0]


def fused(params, frozen, local, setting):
    if setting.op == "conv":
        halves = [frozen, local] if setting.concat == "global_first" else [local, frozen]
        out = torch.einsum("bchw,oc->bohw", torch.cat(halves, 1), params[f"{W_CONV}.weight"][:, :, 0, 0])
        return out + params[f"{W_CONV}.bias"][:, None, None] if setting.conv_bias else out
    by_channel = params[LAMBDA][:, None, None]
    return by_channel * frozen + (1 - by_channel) * local


def logits_of(params, frozen, local, setting):
    return (
        fused(params, frozen, local, setting).flatten(1) @ params[f"{HEAD}.weight"].T + params[f"{HEAD}.bias"]
    )


def reference_client(received, x, y, setting):
    """Alg. 1, ClientUpdate, with full batches."""
    params, frozen = dict(received), with_statistics(received, x)
    for _ in range(STEPS):
        learned = {k: v.detach().requires_grad_() for k, v in params.items() if k not in BUFFERS}
        local, seen = extract(learned, x, None, None)
        loss = functional.cross_entropy(logits_of(learned, frozen, local, setting), y)
        slopes = torch.autograd.grad(loss, list(learned.values()))
        new = {k: (v - LR * s).detach() for (k, v), s in zip(learned.items(), slopes, strict=True)}
        mean, var, count = (params[name] for name in BUFFERS)
        new[BUFFERS[0]] = 0.9 * mean + 0.1 * seen.mean((0, 2, 3))
        new[BUFFERS[1]] = 0.9 * var + 0.1 * seen.var((0, 2, 3))
        new[BUFFERS[2]] = count + 1
        params = new
    return params


def reference_round(newest, held, data, cohort, setting):
    """The server's model after a round, and the mean of what its clients had received.

    ``held`` is what each client has where only participants receive.
    """
    found, received = {}, {}
    for k in cohort:
        chosen, train = data.split.train.of(k), data.dataset.train
        received[k] = held[k] if setting.stale_clients else newest
        found[k] = reference_client(received[k], train.inputs[chosen].double(), train.labels[chosen], setting)
    weights = {k: SIZES[k] if setting.weighting == "samples" else 1 for k in cohort}
    result, frozen = (
        {name: sum(weights[k] * w[name] for k, w in own.items()) / sum(weights.values()) for name in newest}
        for own in (found, received)
    )
    result[BUFFERS[2]] = torch.stack([own[BUFFERS[2]] for own in found.values()]).max()
    if setting.op != "conv":
        result[LAMBDA] = setting.ema * newest[LAMBDA] + (1 - setting.ema) * result[LAMBDA]
    held.update(dict.fromkeys(cohort, result))
    return result, frozen


def reference_score(params, frozen, data, setting):
    """Accuracy and loss of the server's model on the test set; ``frozen`` is what its clients had received."""
    x, y = data.dataset.test.inputs.double(), data.dataset.test.labels
    frozen = with_statistics(frozen if setting.eval_eg == "prev" else params, x)
    logits = logits_of(params, frozen, with_statistics(params, x), setting)
    return (logits.argmax(1) == y).double().mean().item(), functional.cross_entropy(logits, y).item()


def check(setting, store_dir, tolerance=2e-5, **plan):
    """Compare weights and scores of every round; give the federation."""
    federation = federation_of(setting, store_dir, **plan)
    steps, records = federation.run()
    first = steps[0].state.average.params
    expected = {name: t.double() if t.is_floating_point() else t.clone() for name, t in first.items()}
    fusion = {name for name in expected if name.startswith("fusion.")}
    bias = {f"{W_CONV}.bias"} if setting.conv_bias else set()
    assert fusion == ({f"{W_CONV}.weight"} | bias if setting.op == "conv" else {LAMBDA})
    frozen, held = expected, dict.fromkeys(range(3), expected)
    for round_idx, (step, record) in enumerate(zip(steps, records, strict=True)):
        if round_idx:
            cohort = sample_cohort(0, round_idx - 1, 3, setting.cohort_size)
            expected, frozen = reference_round(expected, held, federation.data, cohort, setting)
        assert set(step.state.average.params) == set(expected)
        for name, found in step.state.average.params.items():
            torch.testing.assert_close(
                found.double(), expected[name].double(), rtol=0, atol=tolerance, msg=name
            )
        accuracy, loss = reference_score(expected, frozen, federation.data, setting)
        assert abs(record.metrics["global/acc"] - accuracy) < 1e-9
        assert abs(record.metrics["global/loss"] - loss) < tolerance
        assert set(step.state.frozen) == {name for name in expected if name.startswith("encoder.")}
        for name in set(step.state.frozen) - set(BUFFERS[2:]):
            found = step.state.frozen[name].double()
            torch.testing.assert_close(found, frozen[name], rtol=0, atol=tolerance, msg=name)
        if not setting.stale_clients:
            before = steps[max(round_idx - 1, 0)].state.average.params
            assert all(torch.equal(tensor, before[name]) for name, tensor in step.state.frozen.items())
    return federation
