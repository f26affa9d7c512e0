"""Every search space of a method is one that its runs accept, end to end."""

import pytest

from fedfeat.commands.python import accepted
from fedfeat.commands.tune import _parser, read
from fedfeat.config.choices import CONFIGS
from fedfeat.config.spaces import BASE, SPACES
from fedfeat.errors import ConfigError

NAMES = sorted(path.stem for path in (CONFIGS / SPACES).glob("*.yaml"))
# What a method needs beside it.
BESIDE = {
    "feddf": ["algorithm.server.source=train_pool"],
    "fedmd": ["algorithm.server.source=train_pool"],
}
HELD_OUT = "partition.val_fraction=0.2"


def asked(*words):
    return read(_parser().parse_intermixed_args([*words]))


@pytest.mark.parametrize("name", [name for name in NAMES if name != BASE])
def test_the_space_is_of_keys_and_values_that_the_method_has(name):
    group = "algorithm" if (CONFIGS / "algorithm" / f"{name}.yaml").exists() else "arm"
    found, _, notes = asked(f"{group}={name}", HELD_OUT, *BESIDE.get(name, []))
    assert notes[0] == f"space: configs/{SPACES}/{name}.yaml"
    assert "optimizer.lr" in found.space
    assert [line for line in notes if "not tried" in line] == []


def test_every_other_method_has_the_common_one():
    found, name, notes = asked("algorithm=fedavg", HELD_OUT)
    assert list(found.space) == ["optimizer.lr", "optimizer.weight_decay", "federation.local_epochs"]
    assert notes == ["space: configs/tune/base.yaml (fedavg has none)"]
    assert name == "digits-fedavg"


def test_an_arm_has_its_methods_space_and_words_fix_or_replace_what_is_tried():
    words = [
        "arm=fedprox",
        HELD_OUT,
        "optimizer.lr=0.1,0.2",
        "federation.local_steps=3",
        "federation.local_epochs=null",
    ]
    found, _, notes = asked(*words, "model.hidden=[4],[8]", "model=mlp")
    assert list(found.space) == [
        "optimizer.lr",
        "optimizer.weight_decay",
        "algorithm.client.mu",
        "model.hidden",
    ]
    assert [str(found.space[key]) for key in ("optimizer.lr", "model.hidden")] == ["0.1 | 0.2", "[4] | [8]"]
    assert notes[1:] == ["federation.local_epochs is fixed by the command line"]
    assert found.words == (*words[:2], *words[3:], "model=mlp")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["algorithm=fedavg"],
            r"^partition.val_fraction must be above 0 .*never on test data, but it is 0.0\.$",
        ),
        ([HELD_OUT, "seed=0,1"], r"^seed must be one number, which all trials have, but it is '0,1'\.$"),
        (
            [HELD_OUT, "hydra.run.dir=x"],
            r"^hydra.run.dir must be left out: runs lie below --out, but it is 'x'\.$",
        ),
        ([HELD_OUT, "hydra.sweep.subdir=x"], r"^hydra.sweep.subdir must be left out: runs lie below --out"),
        ([HELD_OUT, "optimizer.lrr=0.1,0.2"], r"^optimizer.lrr must be a known key"),
        ([HELD_OUT, "+federation.lrr=0.1,0.2"], r"^federation.lrr must be a known key"),
        ([HELD_OUT, "optimizer.lr=interval(-1, 1)"], r"^optimizer.lr must be in \(0, inf\), but it is -1"),
        ([HELD_OUT, "optimizer.lr=interval(1, 0)"], r"^optimizer.lr must be tried as choice"),
        ([HELD_OUT, "algorithm=fedprix"], r"^algorithm must be one of .*did you mean fedprox"),
        (
            [
                HELD_OUT,
                "algorithm=fedavg",
                "optimizer.lr=1",
                "optimizer.weight_decay=0",
                "federation.local_epochs=1",
            ],
            r"^The words must leave something to try",
        ),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(words, sentence):
    with pytest.raises(ConfigError, match=sentence):
        asked(*words)


@pytest.mark.parametrize("word", ["+tune=fedprox", "+tune={a: 1}"])
def test_a_run_refuses_a_space(word):
    with pytest.raises(ConfigError, match=r"^tune must be a known key"):
        accepted([word])


def test_a_method_s_own_key_is_tried_though_its_default_is_null_and_one_that_is_not_there_is_not():
    found, _, notes = asked(
        "algorithm=fedbabu", HELD_OUT, "federation.local_steps=3", "federation.local_epochs=null"
    )
    assert list(found.space) == ["optimizer.lr", "optimizer.weight_decay", "algorithm.client.fine_tune_lr"]
    found, _, notes = asked("algorithm=fedbabu", HELD_OUT, "algorithm/client=fedavg")
    assert "algorithm.client.fine_tune_lr" not in found.space
    assert "algorithm.client.fine_tune_lr is not tried, for it is not set here" in notes
