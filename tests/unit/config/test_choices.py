"""Words of the command line that choose an option of a group."""

import re

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
    ("word", "chosen"),
    [
        ("algorithm.server=fedavg", "algorithm/server=fedavg"),
        ("partition.inner='iid'", "partition/inner=iid"),
        ("data.transform=none", "data/transform=none"),
        ("algorithm.server=fedagv", "algorithm/server=fedagv"),
        ("algorithm.server=3", "algorithm/server=3"),
    ],
)
def test_a_group_below_another_is_chosen_with_a_slash(word, chosen):
    with pytest.raises(
        ConfigError, match=rf" must be chosen as a group, {chosen}, but it is given as a key with dots"
    ):
        check_choices([word])


@pytest.mark.parametrize(
    "word",
    [
        "partition.inner=null",
        "partition.inner=${x}",
        "algorithm.server={beta: 0.5}",
        "structure.norm_shared=none",
        "model=mlp",
        "model='mlp'",
        "model=mlp,vgg9",
        "model=[mlp,'vgg9'],mlp",
        "model={hidden: 3}",  # sets model.hidden
        "model=glob(*)",
        "model=${oc.env:MODEL}",
        "hydra/launcher=of_another_package",
        "experiment=fed2/t1_vgg9",
        "experiment=fed2/t1_vgg9.yaml",
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


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("algorithm=FedAvg", "algorithm must be one of .*, fedavg, .* but it is 'FedAvg'; did you mean fedavg?"),
        ("data=CIFAR10", "data must .*; did you mean cifar10?"),
        ("data@public=CIFAR100", "data must .*; did you mean cifar100?"),
        ("model=resnet18", "model must .* (one of torchvision's: model=torchvision model.arch=<name>), but it is "
         "'resnet18'; did you mean resnet18_gn or resnet_cifar?"),
        ("model=mlp,vgg19", "model must .* but it is 'vgg19'; did you mean vgg9 or vgg11?"),
        ("model=xyz", "model must .* but it is 'xyz'."),
        ("experiment=fed2/t1_vgg", "experiment must be one of fed2/ablation, .*, fed2/t1_vgg9, .* but it is "
         "'fed2/t1_vgg'; did you mean fed2/t1_vgg9 or fed2/t1_vgg16?"),
        ("experiment=t1_vgg9", "experiment must be one of cifar10_10x5, .*, mnist_iid, pfl_cifar10, board/..., "
         ".* but it is 't1_vgg9'; did you mean fed2/t1_vgg9?"),
        ("sweep=fed2/foo", "sweep must be one of agent, seeds, but it is 'fed2/foo'."),
        ("logger=[csv,wnadb]", "logger must .* but it is 'wnadb'; did you mean wandb?"),
    ],
)  # fmt: skip
def test_unknown_names_are_refused_beside_the_right_ones(word, sentence):
    with pytest.raises(ConfigError) as caught:
        check_choices([word])
    assert re.fullmatch(re.escape(sentence).replace(r"\.\*", ".*"), str(caught.value)), str(caught.value)


def test_an_override_has_a_key():
    with pytest.raises(ConfigError, match=r"^an override must begin with its key, but it is '=1'\.$"):
        check_choices(["=1"])


def test_a_run_directory_has_a_name():
    check_choices(["hydra.run.dir=."])
    for word in ("hydra.run.dir=", "hydra.run.dir=''", "hydra.run.dir=null"):
        with pytest.raises(
            ConfigError, match=r"^hydra\.run\.dir must name a directory, but it is (''|None)\."
        ):
            check_choices([word])
    check_choices(["hydra.run.dir='x~'", "hydra.sweep.dir='/a/~b'"])
    for key in ("hydra.run.dir", "hydra.sweep.dir"):
        with pytest.raises(ConfigError, match=rf"^{key} must be a folder, without ~, .* but it is '~/x'\."):
            check_choices([f"{key}='~/x'"])


def test_places_of_options_are_there(tmp_path):
    check_choices([f"hydra.searchpath=[file://{tmp_path},pkg://fedfeat]"])
    for place in (f"file://{tmp_path}/none", "pkg://no_such_package.configs", "pkg://fedfeat.none"):
        with pytest.raises(
            ConfigError, match=rf"^hydra\.searchpath must name .* it is '{re.escape(place)}'\."
        ):
            check_choices([f"hydra.searchpath=[{place}]", "algorithm=mine"])


def test_options_of_a_primary_configuration_of_one_s_own_are_left_to_hydra():
    check_choices(["--config-name=mine", "model=mine"])


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
