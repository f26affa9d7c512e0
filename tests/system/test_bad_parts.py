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
        "a half that needs another, in another's place",
        "algorithm=fedavgm algorithm/server@algorithm.server.average=feddyn",
        r"algorithm\.server\.average\.average must be given to FedDynServer, but it is not there\.",
    ),
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
        "halves that train in turn, in processes that wait for the gradients of both",
        "algorithm=fedrep trainer=ddp trainer.accelerator=cpu trainer.devices=2",
        r"trainer\.strategy must be ddp_find_unused_parameters_true for algorithm=fedrep, .*but it is 'ddp'",
    ),
    (
        "unknown Trainer argument",
        "+trainer.nothing=1",
        r"trainer\.nothing must be a known key, but there is none of that name; known there: accelerator, ",
    ),
    (
        "Trainer argument of another kind",
        "+trainer.plugins=nothing",
        r"trainer must fit this machine, but with .*, plugins=nothing it does not: Found invalid",
    ),
    (
        "unknown argument of a callback",
        "callbacks=early_stopping +callbacks.early_stopping.nothing=1",
        r"callbacks\.early_stopping\.nothing must be a known key, but .*; known there: monitor",
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
    (
        "hidden 0",
        "model.hidden=[0]",
        r"model\.hidden must be a list in which each must be a positive whole number, but it is \[0\]",
    ),
    (
        "hidden text",
        "model.hidden=wide",
        r"model\.hidden must be a list in which each must be a positive whole number, but it is 'wide'",
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
    (
        "fedavg of unequal networks",
        "structure=trimmed partition=n_classes partition.classes_per_client=1",
        r"algorithm/server must average unequal networks .*, but FedAvgServer cannot\.",
    ),
    (
        "kept groups of a plain network",
        "algorithm.client.softmax_scope=kept_groups",
        r"algorithm\.client\.softmax_scope must be all, present_classes or balanced for .*, but it is 'kept_groups'",
    ),
    (
        "deeper than the network",
        "algorithm=fed2 structure.depth=99",
        r"structure\.depth must be between 1 and 1 for this network of 2 layers, but it is 99",
    ),
    (
        "more groups than classes",
        "algorithm=fed2 structure.groups=11",
        r"structure\.groups must be between 1 and the 3 classes, but it is 11",
    ),
    (
        "a class without group",
        "algorithm=fed2 structure.class_map=[[0],[2]]",
        r"structure\.class_map must hold each of the 3 classes once .*, but it is \[\[0\], \[2\]\]",
    ),
    (
        "a number for class sets",
        "algorithm=fed2 structure.class_map=3",
        r"structure\.class_map must be one of contiguous, .*, or lists, but it is 3",
    ),
    (
        "uneven groups trimmed",
        "algorithm=psi_net structure.width_policy=uneven",
        r"structure\.width_policy must be other than uneven with structure\.trim=true, but it is 'uneven'",
    ),
    (
        "width factor text",
        "algorithm=fed2 structure.width_factor=wide",
        r"structure\.width_factor must be above 0, or match, but it is 'wide'",
    ),
    (
        "cached features of augmented images",
        "algorithm=fedfusion algorithm.client.cache_eg=true data/transform=mnist_fusion +data.transform.size=4",
        r"algorithm\.client\.cache_eg must be false for data that are augmented .*, but it is True",
    ),
    (
        "fusion without a fusion module",
        "algorithm=fedfusion algorithm/client=fedavg",
        r"algorithm/client must be fedfusion, which fuses, for algorithm/server=fedfusion\.",
    ),
    (
        "nothing to fuse",
        "algorithm=fedfusion model.hidden=[]",
        r"model must have an encoder whose features can be fused, but this one is all head\.",
    ),
    (
        "fusion averaged in groups that are not there",
        "algorithm=fedfusion algorithm/server@algorithm.server.average=fed2",
        r"algorithm/server=fed2 must have groups, but structure=none or separate=false has none\.",
    ),
    (
        "fusion averaged without groups where clients lack some",
        "algorithm=fedfusion structure=trimmed partition=n_classes partition.classes_per_client=1",
        r"algorithm/server must average unequal networks .*, but FedFusionServer cannot\.",
    ),
    (
        "several widths under a mean of whole tensors",
        "algorithm=fedavg structure=widths",
        r"algorithm/server must average unequal networks .*structure=widths.*, but FedAvgServer cannot\.",
    ),
    (
        "one width alone for heterofl",
        "algorithm=heterofl structure=none",
        r"algorithm=heterofl must have networks of several widths \(structure=widths\), but it has none of them\.",
    ),
    (
        "statistics of pixels in an order that nobody has",
        "algorithm=heterofl model=digits_cnn model.norm=bn partition=permuted",
        r"partition must be another for algorithm=heterofl, whose server takes batch norm's statistics in an order "
        r"that no client has, but it is 'permuted'\.",
    ),
    (
        "groups for fedrolex",
        "algorithm=fedrolex structure=grouped",
        r"algorithm=fedrolex must have networks of several widths \(structure=widths\), but it has none of them\.",
    ),
    (
        "a pool of several widths",
        "algorithm=heterofl pool=hetero_cnn",
        r"pool must be none for networks with groups or levels \(structure\), but it is 'a pool'\.",
    ),
    (
        "neurons of several widths compared",
        "algorithm=heterofl diagnostics=alignment",
        r"diagnostics must be none for clients with fewer neurons \(structure=widths\), but it is ",
    ),
    (
        "a client's own model of several widths",
        "algorithm=heterofl algorithm/client=ditto",
        r"algorithm/client must keep no tensors for algorithm=heterofl, .*, but DittoClient does\.",
    ),
    (
        "a personal layer of several widths",
        "algorithm=heterofl algorithm.client.personal=[last]",
        r"algorithm\.client\.personal must be \[\] for HeteroFLServer, which takes whole networks, but it keeps 2 ",
    ),
    (
        "momentum of levels that change",
        "algorithm=heterofl structure.dynamic=true federation.opt_state=keep",
        r"federation\.opt_state must be reset for clients whose levels change .*, but it is 'keep'",
    ),
    (
        "momentum of other channels",
        "algorithm=fedrolex federation.opt_state=keep",
        r"federation\.opt_state must be reset for algorithm=fedrolex, where clients .*, but it is 'keep'",
    ),
    (
        "a step that takes more of the mean",
        "algorithm=fednova structure=widths algorithm/server@algorithm.server.average=heterofl",
        r"algorithm\.server\.average must be a server half that says .*, but it is 'HeteroFLServer'\.",
    ),
    (
        "a head that is never sent to who distils",
        "algorithm=feddf algorithm/client=fedbabu",
        r"algorithm/client must send all of its network for FedDFServer, .* but FedBABUClient leaves 2 tensors out, ",
    ),
    (
        "a projection in networks that are made anew",
        "algorithm=feddf algorithm/client=moon",
        r"algorithm/client must leave networks as they are for FedDFServer, .* but MoonClient changes 5 tensors, ",
    ),
    (
        "statistics of batch norm that nobody has",
        "algorithm=fedavg algorithm/client=heterofl model=digits_cnn model.norm=bn",
        r"algorithm/client must send or keep the running statistics of batch norm for FedAvgServer, .* leaves 6 of ",
    ),
    (
        "a single layer in groups",
        "algorithm=fed2 model.hidden=[]",
        r"structure must separate a network of at least 2 layers, but this one has 1\.",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "sentence"), [row[1:] for row in AT_START], ids=[row[0] for row in AT_START]
)
def test_refused_at_start(cli, small, tmp_path, overrides, sentence):
    if "accelerator=gpu" in overrides and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused_at_start(cli, small, overrides, tmp_path, sentence)


@pytest.mark.parametrize("overrides", ["structure=none", "structure.separate=false"])
def test_fed2_without_groups_is_refused(cli, small, tmp_path, overrides):
    scope = r"algorithm\.client\.softmax_scope must .* without groups \(structure=none or separate=false\), but it is"
    refused_at_start(cli, small, f"algorithm=fed2 {overrides}", tmp_path, scope)
    sentence = r"algorithm/server=fed2 must have groups, but structure=none or separate=false has none\."
    everything = "algorithm.client.softmax_scope=all"
    refused_at_start(cli, small, f"algorithm=fed2 {everything} {overrides}", tmp_path, sentence)


def test_a_diverging_run_names_client_round_seed_and_cause(cli, small, tmp_path):
    outcome = cli(*small, "optimizer.lr=1e30")
    refused(
        outcome, r"Client 0 failed in round 1 \(seed \d+\): its update holds values that are not finite\."
    )
    assert not (tmp_path / "run/summary.json").exists()
