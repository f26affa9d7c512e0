"""Words of the command line that choose an option of a group."""

import pytest

from fedfeat.config.choices import CONFIGS, check_arm, check_choices, options, shows_trace, with_trace
from fedfeat.errors import ConfigError


def test_options_are_the_files_of_a_group():
    assert options("executor") == sorted(path.stem for path in (CONFIGS / "executor").iterdir())
    assert "transform" not in options("data")  # a group in a group
    assert options("seed") == []


@pytest.mark.parametrize(
    ("word", "group", "value"),
    [
        ("optimizer=3", "optimizer", "3"),
        ("optimizer=null", "optimizer", "None"),
        ("optimizer=true", "optimizer", "True"),
        ("+optimizer=0.5", "optimizer", "0.5"),
        ("optimizer@other=3", "optimizer", "3"),
        ("optimizer=[sgd,3]", "optimizer", "3"),
        ("optimizer=sgd,3", "optimizer", "3"),
        ("optimizer=[sgd],[adam,null]", "optimizer", "None"),
        ("algorithm/server=3", "algorithm/server", "3"),
    ],
)
def test_what_is_no_name_is_refused(word, group, value):
    with pytest.raises(ConfigError) as caught:
        check_choices(["--multirun", "seed=0", word])
    assert str(caught.value) == f"{group} must be one of {', '.join(options(group))}, but it is {value}."


@pytest.mark.parametrize(
    "word",
    [
        "model=mlp",
        "model='mlp'",
        "model=mlp,vgg9",
        "model=[mlp,'vgg9'],mlp",
        "model={hidden: 3}",  # sets model.hidden
        "model=glob(*)",
        "model=of_another_folder",
        "model=",
        "~model",
        "~model=mlp",
        "seed=3",
        "model.hidden=3",
        "--config-dir=3",
        "job",
        "model=[mlp",  # Hydra refuses its grammar
    ],
)
def test_the_rest_is_left_to_hydra(word):
    check_choices([word])


def test_an_arm_and_an_algorithm_are_one_too_many():
    for good in (
        ["arm=fed2_bn"],
        ["algorithm=fed2"],
        ["arm=none", "algorithm=fed2"],
        ["arm=fed2_bn", "algorithm.name=a"],
    ):
        check_arm(good)
    with pytest.raises(ConfigError) as caught:
        check_arm(["algorithm=fedavg", "seed=0", "arm=fed2_bn"])
    assert str(caught.value) == "arm must be none beside algorithm=fedavg, but it is 'fed2_bn'."


def test_debug_is_a_switch_as_well_as_a_group():
    words = ["--multirun", "debug=true", "debug = False", "debug=fdr", "debug.x=true", "seed=0"]
    assert with_trace(words) == [
        "--multirun",
        "trace=true",
        "trace=false",
        "debug=fdr",
        "debug.x=true",
        "seed=0",
    ]


@pytest.mark.parametrize(
    "word", ["trace=true", "trace=True", *(f"debug={option}" for option in options("debug"))]
)
def test_stack_traces_are_shown_where_they_are_asked_for(word):
    assert shows_trace(["seed=0", word])


@pytest.mark.parametrize("word", ["trace=false", "trace=1", "debug=perhaps", "debug=1", "debug", "model=mlp"])
def test_and_nowhere_else(word):
    assert not shows_trace([word])
