"""Files of weights that a run began with: they may be moved, and are told by their digests."""

import json

import pytest
import yaml

from fedfeat.errors import CheckpointError
from fedfeat.runs import directory as rundir
from fedfeat.runs.weight_files import as_begun, check_same_weights, files, note_weights


def config(start="before", norm="bn", **pool):
    return {"model": {"weights": start, "norm": norm}, "pool": {"names": ["mlp"], "weights": pool or None}}


def check(run_dir, found):
    rundir.check_same_config(run_dir, as_begun(run_dir, found))


def begin(run_dir, found):
    rundir.write_config(run_dir, yaml.safe_dump(found), {})
    (run_dir / "weights.json").write_text(json.dumps(dict.fromkeys(files(found), "ab")))


def test_a_file_may_have_been_moved(tmp_path):
    begin(tmp_path, config(cnn="a", mlp="b"))
    for found in (config("after", cnn="a", mlp="b"), config("after", cnn="c", mlp="b")):
        before = yaml.safe_dump(found)
        check(tmp_path, found)
        began = as_begun(tmp_path, found)
        assert rundir.config_sha256(began) == rundir.config_sha256(config(cnn="a", mlp="b"))
        assert yaml.safe_dump(found) == before


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (config(None, cnn="a"), r"model\.weights='before' instead of None"),
        (config("after", norm="gn", cnn="a"), r"model\.norm='bn' instead of 'gn'"),
        (config("after"), r"pool\.weights\.cnn='a' instead of None"),
        (config("after", cnn="a", mlp="b"), r"pool\.weights\.mlp=None instead of 'b'"),
    ],
)
def test_what_is_no_other_place_is_another_run(tmp_path, found, told):
    begin(tmp_path, config(cnn="a"))
    with pytest.raises(CheckpointError, match=told):
        check(tmp_path, found)


def test_without_a_digest_a_file_has_to_lie_where_it_was(tmp_path):
    begin(tmp_path, config())
    (tmp_path / "weights.json").unlink()
    with pytest.raises(CheckpointError, match=r"model\.weights='before' instead of 'after'"):
        check(tmp_path, config("after"))


def test_another_file_is_refused_wherever_it_lies(tmp_path):
    for name, text in (("one", "same"), ("moved", "same"), ("other", "different")):
        (tmp_path / name).write_text(text)
    note_weights(tmp_path, config(str(tmp_path / "one")))
    check_same_weights(tmp_path, config(str(tmp_path / "moved")))
    with pytest.raises(CheckpointError, match=r"model\.weights must be the file that the run in "):
        check_same_weights(tmp_path, config(str(tmp_path / "other")))
