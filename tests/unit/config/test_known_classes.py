"""Rules that need the number of classes, for data sets of which it is known before they are read."""

import pytest
from omegaconf import OmegaConf, open_dict, read_write

from fedfeat.commands.parts import build_data
from fedfeat.commands.python import composed
from fedfeat.config.known_classes import _CLASSES, broken_by_classes, known_classes
from fedfeat.data.torchvision_sets import named


def config(*words):
    cfg = composed(words)
    with read_write(cfg), open_dict(cfg):
        del cfg["hydra"]
    return OmegaConf.to_container(cfg, resolve=True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("partition.classes_per_client=11", "partition.classes_per_client be between 1 and the 10 classes 11"),
        ("data=cifar100", "partition.classes_per_client be at least 10 so that 10 clients hold every class 3"),
        ("federation.num_clients=7 partition.classes_per_client=1",
         "partition.classes_per_client be at least 2 so that 7 clients hold every class 1"),
        ("data=cifar100 partition.classes_per_client=10 structure.groups=101",
         "structure.groups be between 1 and the 100 classes 101"),
        ("data=synthetic data.loader.num_classes=2", "partition.classes_per_client be between 1 and the 2 classes 3"),
        ("partition=shards partition.shards_per_client=3 federation.num_clients=7",
         "partition.shards_per_client make num_clients * shards_per_client a multiple of the 10 classes 3"),
        ("partition=subsets partition.classes=[[0],[1]]",
         "federation.num_clients equal the number of class lists in partition.classes (2) 10"),
        ("partition=subsets partition.classes=[[0],[10]] federation.num_clients=2",
         "partition.classes hold class numbers below 10 [10]"),
        ("partition=quantity_skew partition.alpha=1 partition.power=1",
         "partition.alpha be null exactly when partition.power is given 1"),
        ("structure.class_map=[[0,1],[1]]", "structure.class_map hold each of the 10 classes once and no empty list "
         "[[0, 1], [1]]"),
        ("structure.class_map=[[0,1,2,3,4],[4,5,6,7,8,9]]", "structure.class_map hold each of the 10 classes once and "
         "no empty list [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8, 9]]"),
    ],
)  # fmt: skip
def test_what_the_classes_rule_out_is_said_before_data_are_read(words, sentence):
    assert " ".join(map(str, next(broken_by_classes(config(*words.split()))))) == sentence


@pytest.mark.parametrize(
    "words",
    [
        "data=image_folder partition.classes_per_client=30",  # only its files know
        "data=cifar100 partition=iid structure.groups=100",
        "partition=subsets partition.classes=[[0,1],[9]] federation.num_clients=2",
        "structure.class_map=[[0,1,2,3,4],[9,8,7,6,5]]",
        "partition=quantity_skew partition.alpha=null partition.power=1",
    ],
)
def test_the_rest_passes(words):
    assert list(broken_by_classes(config(*words.split()))) == []


def test_the_numbers_of_classes_are_those_of_the_data(tmp_path):
    data = build_data(composed(), config("partition=iid", f"paths.cache={tmp_path}"), "cpu")
    assert data.dataset.num_classes == known_classes(config("data=digits")) == 10
    assert set(_CLASSES) == {"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "sent140"}


def test_a_data_set_of_one_s_own_may_have_any_name():
    assert (
        known_classes({"data": {"name": "digits", "loader": {"_target_": named.__module__ + ".named"}}}) == 10
    )
    assert known_classes({"data": {"name": "digits", "loader": {"_target_": "mine.digits"}}}) is None
