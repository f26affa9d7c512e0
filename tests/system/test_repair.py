"""A run that goes on is the run that it was: its data, its checkpoints, its tables."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

PERSONAL = ("algorithm.client.personal=[head]", "federation.opt_state=keep", "federation.cohort_size=2")


def digest_of(run):
    return json.loads((run / "summary.json").read_text())["weights_sha256"]


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def done(finished):
    """A finished run that has lost its summary, and the digest of its weights."""
    expected = digest_of(finished)
    (finished / "summary.json").unlink()
    return finished, expected


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_client_file_falls_back_to_the_checkpoint_before(cli, small, tmp_path, caplog, damage):
    assert cli(*small, *PERSONAL).code == 0
    run = tmp_path / "run"
    expected = digest_of(run)
    (run / "summary.json").unlink()
    newest = max((run / "clients").glob("*-3.safetensors"))
    if damage == "missing":
        newest.unlink()
    else:
        data = newest.read_bytes()
        newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    caplog.set_level("INFO", logger="fedfeat")
    assert cli(*small, *PERSONAL).code == 0
    assert "The checkpoint of round 3 is ignored: The client state" in caplog.text
    assert "The newest checkpoint that is whole, that of round 2, is used instead." in caplog.text
    assert "Resuming after round 2 of 3" in caplog.text
    assert digest_of(run) == expected
    assert [row["round"] for row in rows(run / "metrics.csv")] == list("0123")


def test_commands_that_read_runs_fall_back_too(cli, small, tmp_path, caplog):
    from fedfeat.commands.loading import load

    assert cli(*small, *PERSONAL).code == 0
    newest = max((tmp_path / "run/clients").glob("*-3.safetensors"))
    client = int(newest.name.split("-")[0])
    newest.unlink()
    found = load(tmp_path / "run").personal_model(client)
    expected = load(tmp_path / "run").personal_model(client, 2)
    assert "The newest checkpoint that is whole, that of round 2, is used instead." in caplog.text
    inputs = np.zeros((2, 1, 4, 4), dtype=np.uint8)
    assert found(inputs).tolist() == expected(inputs).tolist()


def paint(root, seed):
    draw = np.random.default_rng(seed)
    for part, count in (("train", 8), ("test", 2)):
        for label in "ab":
            folder = root / part / label
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = draw.integers(0, 256, size=(4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")


@pytest.fixture
def images(small, tmp_path):
    """Overrides of a run on images of one's own, and their folder."""
    root = tmp_path / "images"
    paint(root, 0)
    kept = [word for word in small if not word.startswith("data")]
    return [*kept, "data=image_folder", f"data.root={root}", "federation.num_clients=2"], root


def test_changed_images_are_refused(cli, images, tmp_path):
    overrides, root = images
    assert cli(*overrides).code == 0
    run = tmp_path / "run"
    (run / "summary.json").unlink()
    paint(root, 1)
    outcome = cli(*overrides)
    assert outcome.code == 2
    assert "data must be those that the run in" in outcome.stderr
    assert "the digest of the examples is" in outcome.stderr
    assert not (run / "summary.json").exists()


def test_a_finished_run_of_images_elsewhere_is_not_that_of_others(cli, images, tmp_path, caplog):
    overrides, root = images
    assert cli(*overrides).code == 0
    other = tmp_path / "other"
    paint(other, 1)
    outcome = cli(*overrides, f"data.root={other}")
    assert outcome.code == 2
    assert "the digest of the examples is" in outcome.stderr
    moved = root.rename(tmp_path / "moved")
    assert cli(*overrides, f"data.root={moved}").code == 0
    assert "unknown" not in caplog.text
    # Without any data the summary is given all the same, and it is said that nothing was compared.
    assert cli(*overrides, f"data.root={tmp_path / 'nowhere'}").code == 0
    assert "had these data is unknown" in caplog.text


def test_altered_caches_are_made_again(cli, images, tmp_path, caplog):
    overrides, _ = images
    assert cli(*overrides).code == 0
    run = tmp_path / "run"
    expected = digest_of(run)
    for path in tmp_path.rglob("images-*.npy"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (split,) = tmp_path.rglob("split.npz")
    arrays = dict(np.load(split))
    arrays["train_indices"] = arrays["train_indices"][::-1]
    np.savez(split, **arrays)
    (run / "summary.json").unlink()
    (run / "checkpoints/000003.json").unlink()
    assert cli(*overrides).code == 0
    assert caplog.text.count("has been altered") == 2
    assert caplog.text.count("must be whole and readable, but it is not") == 1
    assert digest_of(run) == expected


def test_the_same_images_elsewhere_are_the_same(cli, images, tmp_path):
    overrides, root = images
    assert cli(*overrides).code == 0
    expected = digest_of(tmp_path / "run")
    shutil.move(root, tmp_path / "elsewhere")
    (tmp_path / "run/summary.json").unlink()
    (tmp_path / "run/checkpoints/000003.json").unlink()
    outcome = cli(*overrides, f"data.root={tmp_path / 'elsewhere'}")
    assert outcome.code == 0, outcome.stderr
    assert digest_of(tmp_path / "run") == expected


@pytest.mark.parametrize("damage", ["missing", "empty", "random", "without a round"])
def test_lost_rows_are_refused_and_repaired(cli, small, done, damage):
    run, expected = done
    path = run / "metrics.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "missing":
        path.unlink()
    else:
        random = np.random.default_rng(0).bytes(300)
        path.write_bytes({"empty": b"", "random": random}.get(damage, b"".join(lines[:2] + lines[3:])))
    outcome = cli(*small)
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"fedfeat: {path} must have the rows of the rounds up to 3")
    assert "resume=repair" in outcome.stderr
    assert cli(*small, "resume=repair").code == 0
    assert digest_of(run) == expected
    found = rows(path)
    assert [row["round"] for row in found] == list("0123")
    lost = [1] if damage == "without a round" else [0, 1, 2, 3]
    assert [int(row["round"]) for row in found if row["repaired"] == "1"] == lost
    assert json.loads((run / "summary.json").read_text())["repaired"] == {"metrics.csv": lost}
    # The two checkpoints know their rounds.
    assert [bool(row["global/acc"]) for row in found] == [damage == "without a round", False, True, True]
    assert all(row["comm/total_bytes"] for row in found[2:])
    (run / "summary.json").unlink()
    assert cli(*small).code == 0


def test_lost_rows_of_clients_are_refused_and_said(cli, small, done):
    run, expected = done
    path = run / "clients.csv"
    count = len(rows(path))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    outcome = cli(*small)
    assert outcome.code == 2
    assert f"{path} must have the rows of the rounds up to 3" in outcome.stderr
    assert f"2 of {count} are missing" in outcome.stderr
    assert cli(*small, "resume=repair").code == 0
    assert digest_of(run) == expected
    assert json.loads((run / "summary.json").read_text())["repaired"] == {"clients.csv": 2}


def test_a_summary_of_nothing_is_one_sentence(cli, small, finished):
    (finished / "summary.json").write_text("{}")
    outcome = cli(*small)
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"fedfeat: {finished / 'summary.json'} must be the summary of a run")


def test_random_bytes_are_named_by_who_reads_them(finished):
    from fedfeat.errors import CheckpointError
    from fedfeat.runs.metrics_table import read_metrics

    path = finished / "metrics.csv"
    path.write_bytes(b"\xff\xfe\x00" + np.random.default_rng(0).bytes(300))
    with pytest.raises(CheckpointError, match=r"metrics\.csv must be a table of a run"):
        read_metrics(path)
