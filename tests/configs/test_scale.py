"""`scale=mini`, and the part of a data set that it asks for."""

from collections import Counter

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fedfeat.config.arguments import check_targets
from fedfeat.config.choices import CONFIGS
from fedfeat.data.digits import digits
from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.subset import limited
from fedfeat.errors import ConfigError
from fedfeat.runs.text import flatten


def dataset(train_labels, test_labels=(0, 1, 2)):
    """Each image holds its own number, and so does the column."""
    splits = []
    for labels in (train_labels, test_labels):
        inputs = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
        splits.append(Examples(inputs, torch.tensor(labels), {"number": np.arange(len(labels))}))
    return Dataset("numbered", *splits, ("a", "b", "c"), (0.5,), (0.25,))


def test_classes_are_alike_and_rows_stay_together():
    labels = [0] * 20 + [1] * 30 + [2] * 10
    whole = dataset(labels)
    part = limited(whole, 14)
    assert Counter(part.train.labels.tolist()) in ({0: 5, 1: 5, 2: 4}, {0: 5, 1: 4, 2: 5}, {0: 4, 1: 5, 2: 5})
    numbers = part.train.inputs.flatten().tolist()
    assert numbers == part.train.columns["number"].tolist() == sorted(set(numbers))
    assert [labels[number] for number in numbers] == part.train.labels.tolist()
    assert len(part.test) == len(whole.test)
    assert (part.mean, part.std, part.classes) == (whole.mean, whole.std, whole.classes)


def test_a_class_without_more_leaves_its_places_to_the_others():
    part = limited(dataset([0] * 2 + [1] * 9 + [2] * 9), 12)
    assert Counter(part.train.labels.tolist()) == {0: 2, 1: 5, 2: 5}


def test_parts_are_nested_repeated_and_no_first_examples():
    whole = dataset([0, 1, 2] * 20)
    small, large = (set(limited(whole, size).train.columns["number"].tolist()) for size in (9, 30))
    assert small < large
    assert small == set(limited(whole, 9).train.columns["number"].tolist())
    assert small != set(range(9))


def test_splits_are_limited_apart_and_never_beyond_what_is_there():
    whole = dataset([0, 1, 2] * 20, [0, 1, 2] * 20)
    both = limited(whole, 6, 6)
    assert both.train.columns["number"].tolist() != both.test.columns["number"].tolist()
    assert limited(whole, None, 3).train is whole.train
    assert limited(whole, 60, 1000).test is whole.test
    assert len(limited(whole, 1).train) == 1


@pytest.mark.parametrize(
    ("key", "value"), [("num_train", 0), ("num_test", -1), ("num_train", 2.5), ("num_test", True)]
)
def test_a_size_that_is_none_is_refused(key, value):
    node = {"data": {"loader": {"_target_": "fedfeat.data.digits.digits", key: value}}}
    with pytest.raises(
        ConfigError, match=rf"^data\.loader\.{key} must be an integer of at least 1 or null, .* {value}\.$"
    ):
        check_targets(node)


def test_real_digits_in_part():
    part = digits(num_train=50, num_test=20)
    assert set(Counter(part.train.labels.tolist()).values()) == {5}
    assert set(Counter(part.test.labels.tolist()).values()) == {2}
    assert part.mean == digits().mean


def composed(*overrides):
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", list(overrides))


def test_mini_leaves_network_method_and_partition():
    """Only data, local work, rounds and the paper's numbers change, and paper is the default."""
    paper, explicit, mini = (
        flatten(OmegaConf.to_container(composed("experiment=fed2/t2_vgg9", *scale), resolve=True), ".")
        for scale in ((), ("scale=paper",), ("scale=mini",))
    )
    assert paper == explicit
    changed = {key for key in paper.keys() | mini.keys() if paper.get(key) != mini.get(key)}
    changed = {key for key in changed if not key.startswith("published.")}
    assert changed == {
        "data.loader.num_train", "data.loader.num_test", "federation.num_rounds", "federation.batch_size",
        "arms.mini_epochs.fedrep", "arms.rad_size", "arms.warmup_epochs", "structure.warmup_epochs",
    }  # fmt: skip
    assert mini["published"] is None


@pytest.mark.parametrize("preset", ["fedhenn/fh_t2_c10_100_2", "fedhenn/fh_t2_c10_100_5", "mnist_iid"])
def test_mini_trains_the_body_of_fedrep_for_one_epoch_as_other_methods_their_network(preset):
    mini = f"experiment={preset}", "scale=mini"
    fedrep = composed(*mini, "algorithm=fedrep")
    assert fedrep.federation.local_epochs - fedrep.algorithm.client.head_epochs == 1
    assert composed(*mini, "algorithm=fedavg").federation.local_epochs == 1
    assert composed(*mini, "algorithm=fedrep", "federation.local_epochs=4").federation.local_epochs == 4


WARNING = (
    "algorithm=fedrep trains heads alone: {} local epochs, counted at the largest client, are not above "
    "algorithm.client.head_epochs={}."
)


@pytest.mark.parametrize(
    ("overrides", "epochs"),
    [
        (["federation.local_epochs=10"], (10, 10)),
        (["federation.local_epochs=0.5", "algorithm.client.head_epochs=1"], (0.5, 1)),
        (["federation.local_epochs=10.5"], None),
        (["federation.local_epochs=null", "federation.local_steps=20"], (10, 10)),
        (["federation.local_epochs=null", "federation.local_steps=21"], None),
        (["federation.local_epochs=20", "algorithm.client.head_epochs=15"], None),
        (["algorithm=fedavg", "federation.local_epochs=1"], None),
        (["scale=mini", "federation.num_rounds=0"], None),
    ],
)
def test_fedrep_without_an_epoch_for_its_body_is_warned_of(overrides, epochs, cli, small, caplog):
    words = [word for word in small if not word.startswith(("federation.local_epochs", "algorithm"))]
    outcome = cli("algorithm=fedrep", *words, "federation.num_rounds=0", *overrides)
    assert outcome.code == 0, outcome.stderr
    said = [text for text in caplog.messages if "heads alone" in text]
    assert said == ([WARNING.format(*epochs)] if epochs else [])


def test_the_command_line_wins_over_mini():
    cfg = composed(
        "experiment=fed2/fig9", "scale=mini", "federation.num_rounds=3", "federation.local_epochs=4"
    )
    assert (cfg.federation.num_rounds, cfg.federation.local_epochs, cfg.federation.batch_size) == (3, 4, 16)


def test_mini_reaches_every_loader():
    loader = composed("data=digits", "scale=mini", "data.loader.num_test=30").data.loader
    part = instantiate(loader)
    assert (len(part.train), len(part.test)) == (1438, 30)
    for path in (CONFIGS / "data").glob("*.yaml"):
        assert {"num_train", "num_test"} <= set(composed(f"data={path.stem}").data.loader), path.stem
