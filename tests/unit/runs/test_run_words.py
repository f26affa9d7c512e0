"""What runs are called, tagged and filtered by."""

import re

import pytest

from fedfeat.commands.python import composed
from fedfeat.commands.wandb_command import FACTS
from fedfeat.runs.run_words import LONGEST_NAME, headline, words_of


def described(*overrides, swept=()):
    """The words of a run of the command line."""
    from omegaconf import OmegaConf

    cfg = composed(overrides)
    choices, task = dict(cfg.hydra.runtime.choices), list(cfg.hydra.overrides.task)
    plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key not in ("hydra", "paths", "logger")])
    OmegaConf.set_struct(plain, False)
    plain.paths = {"data": "d", "logs": "l", "cache": "c", "root": "r"}
    return words_of(OmegaConf.to_container(plain, resolve=True), choices, task, swept)


@pytest.mark.parametrize(
    ("overrides", "swept", "label"),
    [
        ([], (), "fed2, digits, n_classes, seed=0"),
        (["algorithm=fedavg", "seed=3", "executor=processes"], (), "fedavg, digits, n_classes, seed=3"),
        (
            ["optimizer.lr=0.1", "partition=dirichlet", "partition.alpha=0.3", "seed=1"],
            ("partition.alpha", "seed"),
            "fed2, digits, dirichlet, partition.alpha=0.3, optimizer.lr=0.1, seed=1",
        ),
        (["experiment=fed2/t1_vgg9", "arm=fed2_wide"], (), "fed2_wide, cifar10, n_classes, seed=0"),
        (["+optimizer.nesterov=true"], (), "fed2, digits, n_classes, optimizer.nesterov=true, seed=0"),
        (["name=mine"], (), "mine"),
    ],
)
def test_names_tell_runs_apart(overrides, swept, label):
    assert described(*overrides, swept=swept).label == label


def test_a_long_name_keeps_its_seed_and_what_was_swept():
    given = [
        f"data.loader.{key}={number}" for number, key in enumerate(("num_train", "num_test", "num_classes"))
    ]
    more = [f"federation.{key}=1" for key in ("num_rounds", "local_epochs", "batch_size", "eval_every")]
    words = described("data=synthetic", *given, *more, "optimizer.lr=0.7", swept=("optimizer.lr",))
    assert len(words.label) <= LONGEST_NAME
    assert words.label.startswith("fed2, synthetic, n_classes, optimizer.lr=0.7, ")
    assert re.search(r", \.\.\. [0-9a-f]{8}, seed=0$", words.label)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["experiment=fed2/t1_vgg9", "arm=fedavg"], ["experiment=fed2/t1_mbnet", "arm=fedavg"]),
        (
            ["experiment=fed2/fig7_depth_c10", "arm=[fed2,depth_2]"],
            ["experiment=fed2/fig7_depth_c10", "arm=[fed2,depth_13]"],
        ),
        (
            [*(long := ("federation.batch_size=64", "federation.num_rounds=300", "federation.local_epochs=3",
                "optimizer.weight_decay=0.0005")), "structure.depth=4"],
            [*long, "structure.depth=6"],
        ),
    ],
    ids=["network", "list of arms", "cut off"],
)  # fmt: skip
def test_a_setting_is_what_seeds_alone_share(one, other):
    settings = [
        described(*words, f"seed={seed}").facts["setting"] for words in (one, other) for seed in (0, 1)
    ]
    assert settings[0] == settings[1]
    assert settings[2] == settings[3]
    assert settings[0] != settings[2]
    assert max(map(len, settings)) <= LONGEST_NAME


def test_kinds_and_tags():
    assert (described().kind, described().tags) == ("run", ())
    assert described("seed=1", swept=("seed",)).kind == "sweep"
    assert described("debug=fdr").kind == "debug"
    found = described("experiment=fed2/t1_vgg9", "arm=fed2_wide", "scale=mini")
    assert found.tags == ("fed2", "fed2/t1_vgg9", "arm=fed2_wide", "scale=mini")
    assert described("experiment=digits_10x3").tags == ("digits_10x3",)


def test_facts_are_flat_but_for_what_was_published():
    facts = described("experiment=fed2/t1_vgg9", "structure.groups=5", "structure.depth=3", "seed=2").facts
    told = {
        key: facts[key]
        for key in ("method", "data", "partition", "model", "groups", "depth", "seed", "preset")
    }
    assert told == {
        "method": "fed2",
        "data": "cifar10",
        "partition": "n_classes",
        "model": "vgg9",
        "groups": 5,
        "depth": 3,
        "seed": 2,
        "preset": "fed2/t1_vgg9",
    }
    assert facts["published"] == {"global/acc": 0.88}
    assert (
        facts["setting"]
        == "fed2, cifar10, n_classes, vgg9, fed2/t1_vgg9, structure.depth=3, structure.groups=5"
    )
    assert {*facts, "cohort_size"} == {*FACTS, "published"}
    assert described().facts["groups"] == "one per class"
    assert not {"groups", "depth", "preset", "published"} & set(described("algorithm=fedavg").facts)


def test_without_hydras_record_the_classes_tell():
    config = {
        "seed": 1,
        "name": "n",
        "algorithm": {"name": "fedavg"},
        "data": {"name": "digits"},
        "partition": {"_target_": "fedfeat.data.partition.schemes.NClasses"},
        "model": {"_target_": "fedfeat.models.vgg.vgg9"},
    }
    found = words_of(config, {}, (), ())
    assert found.label == "fedavg, digits, n_classes, seed=1"
    assert found.facts["model"] == "vgg9"


def test_the_headline_is_nine_metrics_with_all_costs():
    costs = ["comm/total_bytes", "compute/examples", "compute/flops", "time/total_s"]
    outcomes = ["global/acc", "global/loss", "personal/acc_mean", "train/loss", "align/agreement", "val/acc"]
    assert headline([*outcomes, *costs, "comm/up_bytes"]) == (
        *("global/acc", "val/acc", "personal/acc_mean", "align/agreement", "global/loss"),
        *costs,
    )
    assert headline(["fusion/mean", "global/acc"], "fusion/mean") == ("fusion/mean", "global/acc")
    assert headline([]) == ()
