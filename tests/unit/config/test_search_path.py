"""Options of a user's own folders and packages: where they are found, and which keys they may bring."""

import importlib.metadata
import sys

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedfeat.commands.python import accepted
from fedfeat.config import search_path
from fedfeat.config.choices import check_choices
from fedfeat.config.rules import check
from fedfeat.config.search_path import CONFIGS, options, override_of, quoted
from fedfeat.errors import ConfigError


@pytest.fixture
def folder(tmp_path):
    """A folder of configurations: an option of a group of ours, and a group of its own."""
    for name, text in {"model/mine.yaml": "width: 3\n", "study/short.yaml": "rounds: 2\n"}.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(text)
    return tmp_path / "conf"


@pytest.fixture
def package(folder, monkeypatch):
    """The same as a package that can be imported."""
    (folder / "__init__.py").touch()
    (folder.parent / "of_hers").mkdir()
    (folder.parent / "of_hers" / "__init__.py").touch()
    folder.rename(folder.parent / "of_hers" / "conf")
    monkeypatch.syspath_prepend(folder.parent)
    yield "of_hers.conf"
    sys.modules.pop("of_hers", None)


@pytest.fixture
def installed(package, monkeypatch):
    """The same as a package that is installed and declares the entry point."""
    point = importlib.metadata.EntryPoint("hers", package, search_path.ENTRY_POINTS)
    monkeypatch.setattr(search_path, "entry_points", lambda group: [point] if group == point.group else [])


@pytest.mark.parametrize(
    "words",
    [
        ["--config-dir", "{}"],
        ["--config-dir={}"],
        ["-cd", "{}"],
        ["hydra.searchpath=[file://{}]"],
    ],
)
def test_folders_that_the_words_name(words, folder):
    words = [word.format(folder) for word in words]
    assert set(options("model", words)) == {"mine", *options("model")}
    assert options("study", words) == ["short"]
    assert options("study") == []
    with pytest.raises(ConfigError, match=r"^model must be one of digits_cnn, .*, mine, .* but it is 3\.$"):
        check_choices([*words, "model=3"])
    with pytest.raises(ConfigError, match=r"^study must be one of short, but it is 'long'\.$"):
        check_choices([*words, "+study=[short,long]"])
    check_choices([*words, "+study=[short]", "study=${other}", "+study=[$other,${other}]", "model=mine"])


def test_packages_that_the_words_name(package):
    assert options("study", [f"hydra.searchpath=[pkg://{package}]"]) == ["short"]
    assert options("study", ["hydra.searchpath=[pkg://of_hers/conf]"]) == ["short"]
    assert options("study", ["hydra.searchpath=[pkg://nowhere.conf,pkg://of_hers/conf]"]) == ["short"]


@pytest.mark.parametrize(
    "word", ["hydra.searchpath=3", "hydra.searchpath=[s3://a]", "--config-dir", "-cd=/nowhere"]
)
def test_what_is_wrong_with_the_words_is_left_to_hydra(word):
    assert options("study", [word]) == []
    check_choices([word, "seed=3"])


def test_installed_packages_are_found_by_their_entry_point(installed):
    assert options("study") == ["short"]
    assert "mine" in options("model")
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", ["model=mine", "+study=short"])
    assert (cfg.model.width, cfg.study.rounds) == (3, 2)


def test_other_applications_are_left_as_they_are(installed, tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "app.yaml").touch()
    with initialize_config_dir(str(tmp_path / "app"), version_base="1.3"):
        assert compose("app", ["+study=short"]).study == "short"  # a text: there is no such group


def test_groups_of_her_own_may_stand_at_the_top_and_nothing_else():
    check({"seed": 0, "study": {"rounds": 2}}, own_groups=["study"])
    for key in ("study", "studies"):
        with pytest.raises(
            ConfigError, match=rf"^{key} must be a known key, but there is none of that name; "
        ):
            check({key: 1}, own_groups=["other"])
    with pytest.raises(ConfigError, match=r"^federation\.study must be a known key, "):
        check({"federation": {"study": 1}}, own_groups=["study"])


@pytest.mark.parametrize(
    "text",
    [
        "/runs/lr=0.1,seed=0", "a b", " a ", "[0.3,0.6]", "it's", r"it\'s", "'it'", "a\\", "a\\b", "${seed}", "a#b",
        "-x", "ü", "null", "1", "1_0", "a,b", r"a\,b", "", "~/a", "/a(b)/{c}",
    ],
)  # fmt: skip
def test_a_text_is_set_as_it_stands(text):
    override = OverridesParser.create().parse_override(override_of("place", text))
    assert OmegaConf.create({override.key_or_group: override.value()}).place == text


@pytest.mark.parametrize("text", ["/runs/a-1/b.c", "a b", "@a%+:*"])
def test_what_needs_no_quotes_has_none(text):
    assert override_of("place", text) == f"place={text}"


@pytest.mark.parametrize("start", ["", "\ufeff# @package _global_\n"], ids=["without", "byte order mark"])
@pytest.mark.parametrize("group", ["experiment", "arm"])
def test_a_preset_that_hydra_puts_below_its_group_is_refused(group, start, tmp_path):
    (tmp_path / "cönf" / group).mkdir(parents=True)
    file = tmp_path / "cönf" / group / "mine.yaml"
    words = [f"hydra.searchpath=[{quoted(f'file://{tmp_path}/cönf')}]", f"{group}=mine"]
    file.write_text(f"{start}seed: 3\n", encoding="utf-8")
    sentence = (
        f"{group} must name a file that begins with '# @package _global_', without which it sets nothing,"
    )
    with pytest.raises(ConfigError, match=f"^{sentence} but it is {{'seed': 3}}\\.$"):
        accepted(words)
    file.write_text("# @package _global_\nseed: 3\n", encoding="utf-8")
    assert accepted(words)[1]["seed"] == 3
