"""The client store: budget, spill, versions, and what a kill leaves behind."""

import gc
import os
import weakref

import pytest
import torch

from fedfeat.errors import CheckpointError
from fedfeat.rounds.experiment import weights_sha256
from fedfeat.runs.client_store import ClientStore
from fedfeat.tree import num_bytes, sha256


def state(client_id, round_idx=1, size=4):
    return {"w": torch.arange(size, dtype=torch.float32) + 1000 * client_id + round_idx}  # (size,)


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_put_and_get(tmp_path):
    store = ClientStore(tmp_path / "clients", 10**6)
    assert store.get(3) is None
    store.put(3, 1, state(3))
    store.put(1, 1, state(1))
    assert torch.equal(store.get(3)["w"], state(3)["w"])
    assert list(store) == [1, 3]
    assert len(store) == 2
    assert 3 in store
    assert 2 not in store
    assert store.num_bytes == 32
    assert names(tmp_path / "clients") == []


def test_the_digest_of_all_weights_is_that_of_the_whole_tree_with_one_client_in_memory(tmp_path, monkeypatch):
    store = ClientStore(tmp_path, 32)
    for client_id in range(12):
        half = torch.arange(3, dtype=torch.bfloat16)
        store.put(client_id, 1, {"of": [state(client_id), ("x", half)], "count": client_id})
    server = {"w": torch.ones(2, 2), "round": 3}
    whole = sha256([server, [[client_id, store.get(client_id)] for client_id in store]])
    alive, most, read = weakref.WeakSet(), [0], store.get

    def watched(client_id):
        gc.collect()
        most.append(len(alive))
        found = read(client_id)
        alive.add(found["of"][0]["w"])
        return found

    monkeypatch.setattr(store, "get", watched)
    assert weights_sha256(server, store) == whole
    assert len(most) == 25
    assert max(most) <= 3  # the one before, and what the store's budget holds
    store.put(11, 2, {"of": [state(11, 9), ("x", half)], "count": 11})
    assert weights_sha256(server, store) != whole


def test_the_least_recently_used_is_spilled(tmp_path):
    store = ClientStore(tmp_path, 32)  # two states of 4 floats
    store.put(0, 1, state(0))
    store.put(1, 1, state(1))
    store.get(0)
    store.put(2, 5, state(2))
    assert names(tmp_path) == ["1-1.safetensors"]
    assert store.num_bytes == 32
    assert torch.equal(store.get(1)["w"], state(1)["w"])  # which sends client 0 out
    assert names(tmp_path) == ["0-1.safetensors", "1-1.safetensors"]


def test_a_clean_entry_is_dropped_without_writing(tmp_path):
    store = ClientStore(tmp_path, 16)
    store.put(0, 1, state(0))
    store.put(1, 1, state(1))
    store.get(0)  # read from disk, sends client 1 out
    written = (tmp_path / "0-1.safetensors").stat().st_mtime_ns
    store.get(1)
    store.get(0)
    assert (tmp_path / "0-1.safetensors").stat().st_mtime_ns == written


def test_a_state_beyond_the_budget_lives_on_disk(tmp_path):
    store = ClientStore(tmp_path, 10)
    store.put(0, 1, state(0))
    assert store.num_bytes == 0
    assert torch.equal(store.get(0)["w"], state(0)["w"])
    assert store.num_bytes == 0


def test_all_types_and_the_order_of_keys_survive_the_disk(tmp_path):
    params = {
        "z": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
        "a": torch.tensor(7),
        "m": torch.tensor([True, False]),
        "e": torch.zeros(0, 3),
        "d": torch.tensor([0.1], dtype=torch.float64),
        "t": torch.arange(6.0).reshape(2, 3).t(),
    }
    params["tied"] = params["d"]
    store = ClientStore(tmp_path, 0)
    store.put(0, 1, params)
    store.put(1, 1, {})
    back = store.get(0)
    assert list(back) == list(params)
    for key, tensor in params.items():
        assert back[key].dtype == tensor.dtype
        assert back[key].shape == tensor.shape
        assert torch.equal(back[key].nan_to_num(9.0), tensor.nan_to_num(9.0)), key
    back["d"].add_(1)  # memory of its own
    assert back["tied"].item() == 0.1
    assert store.get(1) == {}


def test_views_do_not_keep_their_base_alive(tmp_path):
    stacked = torch.zeros(1000, 4)
    store = ClientStore(tmp_path, 10**6)
    store.put(0, 1, {"w": stacked[3].requires_grad_()})
    held = store.get(0)["w"]
    assert held.untyped_storage().nbytes() == store.num_bytes == 16
    assert not held.requires_grad


def test_ten_thousand_clients_stay_within_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # half of the time, and not what is tested here
    budget, clients = 16 * 50, 10_000
    store = ClientStore(tmp_path, budget)
    peak = 0
    for client_id in range(clients):
        store.put(client_id, 1, state(client_id))
        peak = max(peak, store.num_bytes)
    held = sum(num_bytes(params) for params in store._ram.values())
    assert held == store.num_bytes
    assert budget - 16 < peak <= budget
    assert len(store) == clients
    assert len(names(tmp_path)) == clients - 50
    for client_id in (0, 77, 5_000, 9_999):
        assert torch.equal(store.get(client_id)["w"], state(client_id)["w"])
    assert store.num_bytes <= budget


def test_persist_and_restore(tmp_path):
    store = ClientStore(tmp_path, 10**6)
    store.put(2, 1, state(2, 1))
    store.put(0, 1, state(0, 1))
    first = store.persist()
    assert first == {0: 1, 2: 1}
    store.put(2, 2, state(2, 2))
    store.put(4, 2, state(4, 2))
    second = store.persist()
    assert second == {0: 1, 2: 2, 4: 2}
    assert names(tmp_path) == [f"{name}.safetensors" for name in ("0-1", "2-1", "2-2", "4-2")]

    again = ClientStore(tmp_path, 10**6)
    again.restore(second)
    assert torch.equal(again.get(2)["w"], state(2, 2)["w"])
    again.restore(first)
    assert torch.equal(again.get(2)["w"], state(2, 1)["w"])
    assert again.get(4) is None
    assert again.num_bytes == 16
    again.put(2, 2, state(2, 2))  # the round is played again
    assert again.persist() == {0: 1, 2: 2}


def test_versions_only_grow(tmp_path):
    store = ClientStore(tmp_path, 10**6)
    store.put(0, 3, state(0))
    for round_idx in (3, 2):
        with pytest.raises(
            ValueError, match=f"round_idx of client 0 must be greater than 3, but it is {round_idx}"
        ):
            store.put(0, round_idx, state(0))


def test_restore_refuses_missing_files_and_stays(tmp_path):
    store = ClientStore(tmp_path, 10**6)
    store.put(0, 1, state(0))
    manifest = store.persist()
    with pytest.raises(
        CheckpointError, match=r"9-4\.safetensors must hold the state of client 9, but it is missing"
    ):
        store.restore({**manifest, 9: 4})
    assert list(store) == [0]


def test_collect_keeps_manifests_and_current_versions(tmp_path):
    store = ClientStore(tmp_path, 0)
    manifests = []
    for round_idx in (1, 2, 3):
        store.put(0, round_idx, state(0, round_idx))
        store.put(1, round_idx, state(1, round_idx))
        manifests.append(store.persist())
    store.put(0, 4, state(0, 4))  # spilled at once, in no manifest
    (tmp_path / "notes.safetensors").write_bytes(b"not ours")
    store.collect(manifests[1:2])
    kept = ["0-2", "0-4", "1-2", "1-3", "notes"]
    assert names(tmp_path) == [f"{name}.safetensors" for name in kept]
    assert torch.equal(store.get(0)["w"], state(0, 4)["w"])
    store.restore(manifests[1])
    assert torch.equal(store.get(1)["w"], state(1, 2)["w"])


@pytest.mark.parametrize("where", ["header", "tensor", "cut", "gone"])
def test_damage_is_noticed(tmp_path, where):
    store = ClientStore(tmp_path, 0)
    store.put(0, 1, state(0))
    path = tmp_path / "0-1.safetensors"
    data = bytearray(path.read_bytes())
    if where == "gone":
        path.unlink()
    else:
        data[12 if where == "header" else -3] ^= 1
        path.write_bytes(data[:-5] if where == "cut" else data)
    with pytest.raises(CheckpointError, match=r"0-1\.safetensors"):
        store.get(0)


def test_a_failed_write_loses_nothing(tmp_path, monkeypatch):
    store = ClientStore(tmp_path, 16)
    store.put(0, 1, state(0))
    manifest = store.persist()
    store.put(0, 2, state(0, 2))

    def refuse(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        store.put(1, 2, state(1, 2))
    with pytest.raises(OSError, match="No space left"):
        store.persist()
    monkeypatch.undo()
    assert names(tmp_path) == ["0-1.safetensors"]
    assert torch.equal(store.get(0)["w"], state(0, 2)["w"])
    assert store.persist() == {0: 2, 1: 2}
    store.restore(manifest)
    assert torch.equal(store.get(0)["w"], state(0, 1)["w"])
