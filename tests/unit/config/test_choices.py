"""Words of the command line that choose an option of a group."""

import pytest

from fedfeat.config.choices import CONFIGS, check_choices, options
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
