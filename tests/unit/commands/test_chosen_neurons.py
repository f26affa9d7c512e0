"""Neurons by name: what is meant, and what is said of what is not there."""

from types import SimpleNamespace

import pytest

from fedfeat.commands.chosen_neurons import check_neurons, parse_neurons, parse_numbers
from fedfeat.commands.inspect_features import _parser, by_name
from fedfeat.errors import ConfigError
from fedfeat.features.maximisation import Ascent

WIDTHS = {"encoder.conv1.conv": 16, "head.fc1.linear": 4}
NAMES = {"encoder.conv1.conv": "conv1", "head.fc1.linear": "fc1"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["conv1:3"], {"conv1": [3]}),
        (["conv1:3-5"], {"conv1": [3, 4, 5]}),
        (["conv1:0,7,3-4,fc1:2"], {"conv1": [0, 7, 3, 4], "fc1": [2]}),
        (["conv1:1", "conv1:0-2"], {"conv1": [1, 0, 2]}),
        (["encoder.conv1.conv:1"], {"encoder.conv1.conv": [1]}),
        ([], {}),
    ],
)
def test_names_and_numbers_are_read(words, expected):
    assert parse_neurons(words, "--neurons") == expected


@pytest.mark.parametrize(
    "word", ["conv1", "3", ":3", "conv1:", "conv1:a", "conv1:-1", "conv1:5-3", "conv1:1,", ""]
)
def test_what_cannot_be_read_is_refused(word):
    with pytest.raises(
        ConfigError, match=r"^--maximise must (name neurons as layer:neuron|have numbers such as 3)"
    ):
        parse_neurons([word], "--maximise")


def test_clients_are_numbers_and_ranges():
    assert parse_numbers("0-2,9,1", "--clients") == [0, 1, 2, 9]
    with pytest.raises(
        ConfigError, match="--clients must have numbers such as 3 or ranges such as 0-3, but it is 'x'"
    ):
        parse_numbers("x", "--clients")


def test_short_names_and_paths_mean_the_same_layer():
    for name in ("fc1", "head.fc1.linear"):
        assert check_neurons({name: [0, 3]}, WIDTHS, NAMES, "run", "--neurons") == {"head.fc1.linear": [0, 3]}


def test_unknown_layers_are_answered_with_those_that_exist():
    with pytest.raises(ConfigError) as refusal:
        check_neurons({"cnv1": [0]}, WIDTHS, NAMES, "digits-fed2", "--maximise")
    assert str(refusal.value) == (
        "--maximise must name a layer of digits-fed2 (conv1, fc1), but it names 'cnv1'; did you mean conv1?"
    )
    with pytest.raises(ConfigError, match=r"but it names 'zzz'\.$"):
        check_neurons({"zzz": [0]}, WIDTHS, NAMES, "run", "--maximise")


def test_unknown_neurons_are_answered_with_their_range():
    with pytest.raises(
        ConfigError, match="--neurons must have neurons from 0 to 3 for fc1 of run, but it is 4"
    ):
        check_neurons({"fc1": [0, 4]}, WIDTHS, NAMES, "run", "--neurons")


def test_the_commands_defaults_are_those_of_the_ascent():
    args, ascent = _parser().parse_args(["."]), Ascent()
    assert {name: getattr(args, name) for name in vars(ascent)} == vars(ascent)


def test_a_layer_of_two_names_has_the_neurons_of_both():
    wanted = {"fc1": [0, 3], "head.fc1.linear": [3, 1]}
    assert check_neurons(wanted, WIDTHS, NAMES, "run", "--neurons") == {"head.fc1.linear": [0, 3, 1]}


def test_runs_of_one_name_are_numbered_and_none_takes_anothers_place():
    runs = [SimpleNamespace(name=name) for name in ("x", "x", "x 2", "y")]
    named = by_name(runs)
    assert [*named] == ["x 1", "x 3", "x 2", "y"]
    assert all(found is run for found, run in zip(named.values(), runs, strict=True))


def test_a_range_without_an_end_in_sight_is_refused():
    with pytest.raises(ConfigError, match="--clients must have ranges of at most 1,000,000 numbers"):
        parse_numbers("0-99999999999", "--clients")
