"""Code of one's own that a run was made by."""

import json
import logging

import pytest

from fedfeat.runs import own_code
from fedfeat.runs.own_code import FILE, digests, note_own_code, warn_of_other_code

CONFIG = {
    "algorithm": {"client": {"_target_": "its_method.half.Client"}, "server": {"_target_": "fedfeat.server.Server"}},
    "optimizer": {"_target_": "torch.optim.SGD"},
    "model": {"_target_": "its_model.slim"},
    "data": {"loader": {"_target_": "no_such_module.load"}},
}  # fmt: skip


@pytest.fixture
def code(tmp_path, monkeypatch):
    package = tmp_path / "its_method"
    (package / "inner").mkdir(parents=True)
    (package / "data").mkdir()
    for name in ("__init__.py", "half.py", "inner/__init__.py", "inner/more.py", "data/prepared.py"):
        (package / name).write_text("")
    (tmp_path / "its_model.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(own_code, "uncommitted", set)
    return tmp_path


def test_packages_and_modules_of_one_s_own_have_a_digest_and_nothing_else(code):
    assert [*digests(CONFIG)] == ["its_method", "its_model"]


def test_a_package_may_have_no_init_file_and_an_editor_its_own(code):
    (code / "bare").mkdir()
    (code / "bare" / "half.py").write_text("")
    config = {"_target_": "bare.half.Client"}
    before = digests(config)
    assert [*before] == ["bare"]
    (code / "bare" / ".#half.py").symlink_to("nowhere")
    assert digests(config) == before
    (code / "bare" / "half.py").write_text("x = 1\n")
    assert digests(config) != before


def test_a_module_of_ours_counts_until_a_commit_has_it_and_where_it_has_counted_before(code, monkeypatch):
    package = code / "fedfeat"
    (package / "algorithms").mkdir(parents=True)
    method = package / "algorithms" / "mine.py"
    method.write_text("")
    monkeypatch.setattr(own_code, "_PACKAGE", package)
    config = {"_target_": "fedfeat.algorithms.mine.Mine", "server": {"_target_": "fedfeat.server.Server"}}
    assert digests(config) == {}
    monkeypatch.setattr(own_code, "uncommitted", lambda: {method})
    before = digests(config)
    assert [*before] == ["fedfeat.algorithms.mine"]
    monkeypatch.setattr(own_code, "uncommitted", set)
    assert digests(config, before) == before
    method.write_text("x = 1\n")
    assert digests(config, before) != before


def test_a_folder_that_is_no_package_does_not_count(code):
    before = digests(CONFIG)
    (code / "its_method" / "data" / "prepared.py").write_text("x = 1\n")
    assert digests(CONFIG) == before


@pytest.mark.parametrize("file", ["its_method/__init__.py", "its_method/inner/more.py", "its_model.py"])
def test_what_has_changed_since_the_last_rounds_is_said_and_noted_behind_it(code, tmp_path, caplog, file):
    name = file.partition("/")[0].removesuffix(".py")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    run_dir, first = tmp_path / "run", digests(CONFIG)
    note_own_code(run_dir, CONFIG)
    (run_dir / "checkpoints" / "1.json").touch()
    with caplog.at_level(logging.WARNING, "fedfeat"):
        for text in ("", "x = 1\n", "x = 1\n", ""):
            (code / file).write_text(text)
            warn_of_other_code(run_dir, CONFIG)
            note_own_code(run_dir, CONFIG)
    assert caplog.messages == 2 * [
        f"{name} has changed since the run in {run_dir} began; rounds from here on are of the new code, all of them in "
        "another hydra.run.dir."
    ]
    (code / file).write_text("x = 1\n")
    every = {key: [digest] for key, digest in first.items()} | {name: [digests(CONFIG)[name], first[name]]}
    assert json.loads((run_dir / FILE).read_text()) == every


def test_code_that_made_no_round_is_not_kept(code, tmp_path, caplog):
    note_own_code(tmp_path, CONFIG)
    (tmp_path / "config.yaml").touch()
    (code / "its_model.py").write_text("x = 1\n")
    warn_of_other_code(tmp_path, CONFIG)
    note_own_code(tmp_path, CONFIG)
    assert not caplog.messages
    assert json.loads((tmp_path / FILE).read_text()) == {key: [one] for key, one in digests(CONFIG).items()}


def test_a_digest_of_an_earlier_version_is_read(code, tmp_path, caplog):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "1.json").touch()
    (tmp_path / FILE).write_text(json.dumps(digests(CONFIG) | {"its_model": "before"}))
    warn_of_other_code(tmp_path, CONFIG)
    assert [message.partition(" ")[0] for message in caplog.messages] == ["its_model"]
    note_own_code(tmp_path, CONFIG)
    now = {key: [one] for key, one in digests(CONFIG).items()}
    assert json.loads((tmp_path / FILE).read_text()) == now | {"its_model": ["before", *now["its_model"]]}


@pytest.mark.parametrize("text", [None, "", "[1]", "{"])
def test_a_run_that_says_nothing_of_it_is_left_alone(code, tmp_path, caplog, text):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "1.json").touch()
    if text is not None:
        (tmp_path / FILE).write_text(text)
    note_own_code(tmp_path, CONFIG)
    warn_of_other_code(tmp_path, CONFIG)
    assert not caplog.messages
    assert (tmp_path / FILE).exists() == (text is not None)
