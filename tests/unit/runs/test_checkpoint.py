"""Checkpoints: complete or absent, whatever is cut, flipped, killed or full."""

import multiprocessing
import random
import resource
import time
from typing import NamedTuple

import pytest
import torch

from fedfeat import tree
from fedfeat.errors import CheckpointError
from fedfeat.runs.checkpoint import Checkpoint, CheckpointFolder
from fedfeat.runs.client_store import ClientStore
from fedfeat.types import Update

CONTEXT = multiprocessing.get_context("forkserver")  # imports torch once, not once per process
CONTEXT.set_forkserver_preload(["fedfeat.runs.checkpoint", "fedfeat.runs.client_store"])


def checkpoint(round_idx, size=8):
    weights = torch.full((size,), float(round_idx))
    return Checkpoint(
        round_idx=round_idx,
        server_state={"weights": weights, "update": Update(1, 2, {"p": weights + 1}, None, {"loss": 0.1})},
        counters={"comm/up_bytes": 12.5 * round_idx, "nan": float("nan")},
        manifest={10: round_idx, 2: 0},
        config_sha256="abc",
        extra={"best": {"round": 3}, "ids": {2: "b", 10: "a"}},
    )


def assert_same(found, round_idx, size=8):
    expected = checkpoint(round_idx, size)
    assert found is not None
    assert tree.sha256(found.server_state) == tree.sha256(expected.server_state)
    assert isinstance(found.server_state["update"], Update)
    assert found.round_idx == round_idx
    assert found.counters["comm/up_bytes"] == expected.counters["comm/up_bytes"]
    assert found.manifest == expected.manifest
    assert found.config_sha256 == "abc"
    assert found.extra == {"best": {"round": 3}, "ids": {"2": "b", "10": "a"}}


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_save_and_load(folder, tmp_path):
    assert folder.load_latest() is None
    folder.save(checkpoint(0))
    folder.save(checkpoint(12))
    assert files(tmp_path) == ["000000.json", "000000.safetensors", "000012.json", "000012.safetensors"]
    found = folder.load_latest()
    assert_same(found, 12)
    found.server_state["weights"].add_(1)  # the caller's own, and writable
    assert_same(folder.load(0), 0)
    assert folder.manifests() == [{2: 0, 10: 0}, {2: 0, 10: 12}]


def test_every_type_survives_exactly(folder):
    shared = torch.randn(3)
    state = {
        "bf16": torch.randn(33).to(torch.bfloat16),
        "int": torch.tensor([-(2**62), 5]),
        "bool": torch.tensor(True),
        "nan": torch.tensor([0.1, -0.0, float("nan")], dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        "twice": (shared, shared, shared[1:]),
        "view": torch.arange(6).reshape(2, 3).t(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    folder.save(checkpoint(1)._replace(server_state=state))
    found = folder.load_latest().server_state
    assert tree.sha256(found) == tree.sha256(state)
    assert [t.dtype for t in tree.tensors(found)] == [t.dtype for t in tree.tensors(state)]


def test_only_the_newest_are_kept(folder, tmp_path):
    folder.save(checkpoint(1))
    root = tmp_path / "checkpoints"
    (root / "000000.safetensors").write_bytes(b"without its json")
    (root / "notes.json").write_text("{}")
    for round_idx in (2, 3, 4):
        folder.save(checkpoint(round_idx))
    assert files(tmp_path) == [
        "000003.json",
        "000003.safetensors",
        "000004.json",
        "000004.safetensors",
        "notes.json",
    ]
    with pytest.raises(ValueError, match="keep must be at least 1"):
        CheckpointFolder(root, keep=0)


def test_pruning_never_removes_what_was_just_written(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=1)
    folder.save(checkpoint(9))
    folder.save(checkpoint(4))
    assert folder.rounds() == [4, 9]


def test_a_repeated_round_leaves_equal_tensors_alone(folder, tmp_path):
    folder.save(checkpoint(1))
    path = tmp_path / "checkpoints" / "000001.safetensors"
    before = path.stat().st_ino
    folder.save(checkpoint(1))
    assert path.stat().st_ino == before
    folder.save(checkpoint(1, size=3))
    assert_same(folder.load_latest(), 1, size=3)


class Foreign(NamedTuple):
    w: torch.Tensor


def test_a_state_that_could_not_be_read_is_refused_before_writing(folder, tmp_path):
    foreign = checkpoint(1)._replace(server_state=Foreign(torch.ones(1)))
    with pytest.raises(CheckpointError, match=r"Foreign must come from fedfeat to be read back"):
        folder.save(foreign)
    assert not (tmp_path / "checkpoints").exists()
    trusting = CheckpointFolder(tmp_path, trusted=("fedfeat", __name__.partition(".")[0]))
    trusting.save(foreign)
    assert trusting.load_latest().server_state.w.tolist() == [1.0]


def damage(path, how):
    kind, _, share = how.partition(":")
    data = bytearray(path.read_bytes())
    place = int(float(share or 0) * (len(data) - 1))
    data[place] ^= 1
    path.write_bytes({"cut": data[:place], "flip": data, "junk": b'{"body": 3}', "gone": b""}[kind])
    if kind == "gone":
        path.unlink()


SHARES = [f"{i / 12:.3f}" for i in range(12)]
DAMAGES = [
    "gone",
    "junk",
    *(f"cut:{share}" for share in SHARES),
    *(f"flip:{share}" for share in (*SHARES, "1.0")),
]


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_damaged_checkpoint_falls_back_and_says_so(folder, tmp_path, caplog, kind):
    path = folder.directory / f"000002.{kind}"
    for how in DAMAGES:
        folder.save(checkpoint(1))
        folder.save(checkpoint(2))
        damage(path, how)
        caplog.clear()
        assert_same(folder.load_latest(), 1)
        assert "round 2 is ignored" in caplog.text, how
        assert f"000002.{kind}" in caplog.text, how
        assert {(record.name, record.levelname) for record in caplog.records} == {("fedfeat", "WARNING")}


def test_a_number_changed_by_hand_is_noticed(folder, tmp_path):
    folder.save(checkpoint(2))
    path = tmp_path / "checkpoints" / "000002.json"
    assert "25.0" in path.read_text()
    path.write_text(path.read_text().replace("25.0", "26.0"))
    with pytest.raises(CheckpointError, match=r"000002\.json must match its digest"):
        folder.load(2)


def test_nothing_left_to_read_is_an_error(folder, tmp_path):
    folder.save(checkpoint(1))
    folder.save(checkpoint(2))
    damage(tmp_path / "checkpoints" / "000001.json", "cut:0.5")
    damage(tmp_path / "checkpoints" / "000002.safetensors", "flip:0.9")
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* can be read: .*000002.*000001"):
        folder.load_latest()


def test_a_first_save_that_was_killed_is_no_checkpoint(folder, tmp_path, caplog):
    folder.save(checkpoint(1))
    damage(tmp_path / "checkpoints" / "000001.json", "gone")
    assert folder.load_latest() is None
    assert "000001.json is missing" in caplog.text


def save_for_ever(directory, done):
    """Play rounds as a run does: client states, checkpoint, collection."""
    folder, store = CheckpointFolder(directory), ClientStore(directory / "clients", 200)
    latest = folder.load_latest()
    start = latest.round_idx if latest else 0
    store.restore(latest.manifest if latest else {})
    for round_idx in range(start + 1, start + 10_000):
        for client_id in range(round_idx % 3, 9, 3):
            store.put(client_id, round_idx, {"w": torch.full((8,), float(round_idx))})
        folder.save(checkpoint(round_idx, size=5_000)._replace(manifest=store.persist()))
        store.collect(folder.manifests())
        done.value = round_idx


def test_killed_at_random_moments(tmp_path):
    done, pause = CONTEXT.Value("q", 0), random.Random(0)
    for _ in range(20):
        process = CONTEXT.Process(target=save_for_ever, args=(tmp_path, done))
        before = done.value
        process.start()
        deadline = time.monotonic() + 30
        while done.value == before and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(pause.uniform(0, 0.03))
        process.kill()
        process.join()
        assert process.exitcode == -9
        found = CheckpointFolder(tmp_path).load_latest()
        assert_same(
            found._replace(manifest=checkpoint(found.round_idx).manifest), found.round_idx, size=5_000
        )
        assert found.round_idx >= done.value > before
        store = ClientStore(tmp_path / "clients", 0)
        store.restore(found.manifest)
        for client_id in store:
            assert store.get(client_id)["w"].tolist() == [float(found.manifest[client_id])] * 8


def save_beyond_the_limit(directory, limit, answer):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        CheckpointFolder(directory).save(checkpoint(2, size=10_000))
    except OSError as error:
        answer.put(type(error).__name__)
    answer.put("saved")


@pytest.mark.parametrize("limit", [100, 20_000])
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, folder, limit):
    folder.save(checkpoint(1))
    before = files(tmp_path)
    answer = CONTEXT.SimpleQueue()
    process = CONTEXT.Process(target=save_beyond_the_limit, args=(tmp_path / "checkpoints", limit, answer))
    process.start()
    assert answer.get() == "OSError"
    process.join()
    assert files(tmp_path) == before
    assert_same(folder.load_latest(), 1)
