"""fedfeat-schemas for somebody's own folder: her class, her options, a group of hers, and an editor's settings."""

import json
import sys

import pytest
import yaml
from schema_files import Schemas

from fedfeat.commands.schemas import main
from fedfeat.config.choices import CONFIGS
from fedfeat.config.schemas.comments import beside_keys, first_words, of_arguments

CODE = '''
from typing import Annotated, Literal, NamedTuple

from fedfeat.client import ClientModule
from fedfeat.config.conditions import Count, interval


class Window(NamedTuple):
    """A record."""

    first: Count = 1


class Quiet(ClientModule):
    """A half.

    Args:
        nu: How quiet it is.
            On and on.
        mode: Which one.
    """

    def __init__(self, *, nu: Annotated[float, interval("(0, 1]")] = 0.5, mode: Literal["a", "b"] = "a",
                 window: Window | None = None, **arguments) -> None:
        super().__init__(**arguments)
'''
FILES = {
    "algorithm/client/quiet.yaml": "defaults:\n  - fedavg\n_target_: quiet_half.Quiet\nnu: 0.5\n",
    "study/short.yaml": "rounds: 2   # of the pilot\n",
    "experiment/pilot.yaml": "# @package _global_\ndefaults:\n  - override /algorithm/client: quiet\n",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with options and schemas, and what the command printed there."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "quiet_half.py").write_text(CODE)
    for way, text in FILES.items():
        path = folder / "conf" / way
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / ".vscode").mkdir()
    (folder / ".vscode" / "settings.json").write_text('{"editor.rulers": [110]}')
    (folder / ".schemas").mkdir()
    gone = (CONFIGS / ".schemas" / "model.json").read_text().replace("file:model", "file:gone")
    (folder / ".schemas" / "gone.json").write_text(gone)
    (folder / ".schemas" / "other.json").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        main(["--config-dir", "conf", "--vscode"])
    sys.modules.pop("quiet_half", None)
    return folder


@pytest.fixture(scope="module")
def schemas(written):
    files = (path for path in (written / ".schemas").iterdir() if path.name != "other.json")
    return Schemas({path.name: path.read_text() for path in files})


def test_schemas_of_groups_that_are_gone_go_and_other_files_stay(written):
    assert not (written / ".schemas" / "gone.json").exists()
    assert (written / ".schemas" / "other.json").read_text() == "{}"


@pytest.mark.parametrize("way", FILES)
def test_her_files_pass(schemas, way):
    name = "tree.json" if way.startswith("experiment") else f"{way.rpartition('/')[0].replace('/', '.')}.json"
    assert schemas.refusals(name, yaml.safe_load(FILES[way])) == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{_target_: quiet_half.Quiet, nu: 0}", "nu"),
        ("{_target_: quiet_half.Quiet, mode: c}", "mode"),
        ("{_target_: quiet_half.Quiet, nuu: 1}", "nuu"),
        ("{_target_: quiet_half.Quiet, window: {first: 0}}", "window.first"),
        ("{_target_: quiet_half.Quiet, window: {frist: 1}}", "frist"),
        ("{_target_: quiet_half.Quiet, personal: head}", "personal"),
        ("{defaults: [quiett]}", "defaults"),
    ],
)
def test_her_mistakes_do_not(schemas, text, key):
    refusals = schemas.refusals("algorithm.client.json", yaml.safe_load(text))
    assert any(key in one for one in refusals), refusals


def test_her_group_is_a_key_of_presets_and_strangers_are_not(schemas):
    assert schemas.refusals("tree.json", {"study": {"rounds": 3}}) == []
    assert schemas.refusals("tree.json", {"study": {"round": 3}})
    assert schemas.refusals("tree.json", {"studies": {"rounds": 3}})
    described = schemas.shared["study"]["properties"]["rounds"]["description"]
    assert described == "Of the pilot."


def test_her_docstrings_are_shown(schemas):
    found = schemas.shared["quiet_half.Quiet"]["properties"]["nu"]
    assert found["description"] == "How quiet it is. On and on. Must be in (0, 1]."
    assert found["default"] == 0.5


def test_settings_keep_what_else_they_say(written):
    settings = json.loads((written / ".vscode" / "settings.json").read_text())
    assert settings["editor.rulers"] == [110]
    assert settings["yaml.schemas"] == {
        "./.schemas/algorithm.client.json": ["conf/algorithm/client/*.yaml"],
        "./.schemas/study.json": ["conf/study/*.yaml"],
        "./.schemas/tree.json": ["conf/experiment/**/*.yaml"],
    }


def test_what_cannot_be_done_is_refused_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["--config-dir", "nowhere"])
    assert "--config-dir must be a folder of groups, but it is 'nowhere'" in capsys.readouterr().err


def test_comments_stand_beside_keys_and_go_on_below():
    text = """# Of the file.
a: 1   # one
       # and more
b: "# no comment"
c:   # of a section
  d: [1, 2]   # two
# e: 3
f: 'x' # and 'y' # too
g:
- h: 4 # four
"""
    assert beside_keys(text) == {
        ("a",): "one and more",
        ("c",): "of a section",
        ("c", "d"): "two",
        ("f",): "and 'y' # too",
        ("g", "h"): "four",
    }


class Base:
    """A base.

    Args:
        kept: Of the base.
        told: Of the base too.
    """


class Derived(Base):
    """One more.

    Attributes:
        told (int): Of its own.

            Not this.
        more: And this: too.
    """


def test_docstrings_say_it_of_arguments_and_attributes_nearest_first():
    assert of_arguments(Derived) == {"told": "Of its own.", "more": "And this: too.", "kept": "Of the base."}


def test_long_texts_are_cut_after_a_sentence():
    assert first_words("One. Two and three.", 10) == "One."
    assert first_words("One two three four", 10) == "One two ..."
