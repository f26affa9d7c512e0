"""Trainers, models and methods that are refused while they are built, or when they fail: one sentence each."""

from typing import NamedTuple

import pytest
import torch
from refusals import refused, refused_at_start

from fedfeat.algorithms.fedavg import FedAvgServer


class OtherPayload(NamedTuple):
    """What no client of the project speaks."""

    statistics: dict


class OtherServer(FedAvgServer):
    """A server half that fits no client half."""

    payload_type = OtherPayload


AT_START = [
    (
        "forced unknown key",
        "+algorithm.client.nu=1",
        r"algorithm\.client\.nu must be a known key, but there is none of that name; known there: model",
    ),
    (
        "gpu without one",
        "trainer.accelerator=gpu",
        r"trainer must fit this machine, but with accelerator=gpu, .*: No supported gpu",
    ),
    (
        "unknown accelerator",
        "trainer.accelerator=nothing",
        r"trainer must fit this machine, but with accelerator=nothing, .*invalid accelerator",
    ),
    (
        "unknown strategy",
        "trainer.strategy=nothing",
        r"trainer must fit this machine, but with .*strategy=nothing, .*invalid strategy",
    ),
    (
        "unknown Trainer argument",
        "+trainer.extra.nothing=1",
        r"trainer must fit this machine, but with .*extra={'nothing': 1} it does not: .*'nothing'",
    ),
    (
        "vgg9 on 4x4",
        "model=vgg9",
        r"model vgg9 needs inputs of at least 8x8 .*, but the data set gives \(1, 4, 4\)",
    ),
    (
        "vgg16 on 28x28",
        "model=vgg16_cifar data.loader.shape=[1,28,28]",
        r"model vgg16_cifar needs inputs of at .*, but the data set gives \(1, 28, 28\)",
    ),
    (
        "unknown norm",
        "model=digits_cnn model.norm=xy",
        r"model\.norm must be one of none, bn, gn, but it is 'xy'",
    ),
    (
        "norm groups",
        "model=digits_cnn model.norm=gn model.norm_groups=5",
        r"model\.norm_groups must divide the 16 channels of a layer, but it is 5",
    ),
    ("dropout 2", "model.dropout=2", r"model\.dropout must be at least 0 and below 1, but it is 2"),
    ("hidden 0", "model.hidden=[0]", r"model\.hidden must be a positive whole number, but it is 0"),
    (
        "hidden text",
        "model.hidden=wide",
        r"model\.hidden must be a list of layer sizes, but it is 'wide'",
    ),
    (
        "personal nose",
        "algorithm.client.personal=[nose]",
        r"algorithm\.client\.personal must name .*, but it is 'nose'",
    ),
    (
        "halves that do not fit",
        f"algorithm.server._target_={__name__}.OtherServer",
        r"algorithm/client and algorithm/server .*, but ClientModule speaks Weights and OtherSer",
    ),
    (
        "target that does not exist",
        "model._target_=fedfeat.models.nothing",
        r"model\._target_ must name something that .*, but it is 'fedfeat\.models\.nothing'",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "sentence"), [row[1:] for row in AT_START], ids=[row[0] for row in AT_START]
)
def test_refused_at_start(cli, small, tmp_path, overrides, sentence):
    if "accelerator=gpu" in overrides and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused_at_start(cli, small, overrides, tmp_path, sentence)


def test_a_diverging_run_names_client_round_seed_and_cause(cli, small, tmp_path):
    outcome = cli(*small, "optimizer.lr=1e30")
    refused(
        outcome, r"Client 0 failed in round 1 \(seed \d+\): its update holds values that are not finite\."
    )
    assert not (tmp_path / "run/summary.json").exists()
