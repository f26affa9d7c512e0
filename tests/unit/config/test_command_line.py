"""Command lines: one sentence for a mistake, and the same words for folders and output."""

import pytest

from fedfeat.config.command_line import Parser, check_options, number, options_first
from fedfeat.config.conditions import integer
from fedfeat.errors import ConfigError


@pytest.fixture
def parser(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "abd":  # folders of runs have to be there
        (tmp_path / name).mkdir()
    made = Parser("fedfeat-x", "Do something\nto runs.\n\nMore of it.")
    made.add_folders()
    made.add_out(None, "figures/ of the first DIR")
    made.add_looks(2.0, "between two looks")
    made.add_argument("--round", type=int)
    made.add_argument("--trials", type=number(integer(1)))
    made.add_argument("--how", choices=("a", "b"))
    return made


def test_options_may_stand_between_folders(parser):
    found = parser.read(["a", "--out", "o", "b", "--every", "0.5"])
    assert ([str(one) for one in found.folders], str(found.out), found.every) == (["a", "b"], "o", 0.5)
    assert parser.description == "Do something to runs."


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "DIR must be given, but nothing is."),
        (
            ["d", "--otu", "o"],
            "--otu must be a known option, but there is none of that name; did you mean --out or --round?",
        ),
        (
            ["d", "--ronud=3"],
            "--ronud must be a known option, but there is none of that name; did you mean --round or --out?",
        ),
        (["d", "--round", "x"], "--round must be an integer, but it is 'x'."),
        (["d", "--out"], "--out must have one argument, but it has not."),
        (["d", "--trials", "0"], "--trials must be an integer of at least 1, but it is '0'."),
        (["d", "--every", "-1"], "--every must be in (0, inf), but it is '-1'."),
        (["d", "--every", "x"], "--every must be in (0, inf), but it is 'x'."),
    ],
)
def test_a_mistake_is_one_sentence(parser, capsys, words, sentence):
    with pytest.raises(SystemExit, match="2"):
        parser.read(words)
    assert capsys.readouterr().err == f"fedfeat-x: {sentence}\n"


def test_a_wrong_choice_names_all(parser, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.read(["d", "--how", "c"])
    said = capsys.readouterr().err.replace("'", "")  # which versions of Python put around some
    assert said == "fedfeat-x: --how must be one of a, b, but it is c.\n"


def test_a_command_without_folders_refuses_words(capsys):
    with pytest.raises(SystemExit, match="2"):
        Parser("fedfeat-x", None).read(["word"])
    said = capsys.readouterr().err
    assert said == "fedfeat-x: word must be a known argument, but there is none of that name.\n"


def test_an_option_that_hydra_lacks_is_one_sentence_and_its_own_pass():
    check_options(["--multirun", "--multi", "-m", "--config-dir=conf", "seed=1"])
    with pytest.raises(ConfigError, match=r"--multirn must be a known option.*did you mean --multirun"):
        check_options(["--multirn", "seed=1"])


def test_overrides_may_stand_on_both_sides_of_an_option():
    words = ["seed=1", "--config-dir", "conf", "~model", "--multirun", "+a.b=-c", "experiment=x"]
    ordered = options_first(words)
    assert ordered == ["--config-dir", "conf", "--multirun", "seed=1", "~model", "+a.b=-c", "experiment=x"]
    assert options_first(ordered) == ordered


@pytest.mark.parametrize(
    "option", ["--config-dir", "-cd", "--config-d", "--cfg", "--experimental-rerun", "-cn"]
)
def test_the_value_of_an_option_stays_behind_it(option):
    words = [option, "conf/seed=1", "--multirun", "seed=1"]
    assert options_first(["seed=1", *words[:3]]) == words
    assert options_first(["--multirun", "seed=1", f"{option}=conf/a=1"]) == [
        "--multirun",
        f"{option}=conf/a=1",
        "seed=1",
    ]
