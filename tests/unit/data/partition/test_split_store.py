import csv
import importlib
import multiprocessing
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.partition.schemes import Dirichlet, Iid, NClasses, Scheme, Shards
from fedfeat.data.partition.split_store import load_or_make, read_split
from fedfeat.errors import DataError


def tiny():
    train = Examples(torch.zeros(60, 1, 2, 2, dtype=torch.uint8), torch.arange(60) % 4)
    test = Examples(torch.zeros(20, 1, 2, 2, dtype=torch.uint8), torch.arange(20) % 4)
    return Dataset("tiny", train, test, ("ant", "bee", "cat", "dog"), (0.0,), (1.0,))


def make(cache, barrier=None, results=None):
    if barrier is not None:
        barrier.wait(60)
    split = load_or_make(Dirichlet(alpha=0.3, min_size=2), tiny(), 5, 7, cache)
    if results is not None:
        results.put(split.train.indices.tolist())
    return split


FILES = {"split.npz", "split.sha256", "key.json", "classes.csv"}


def same(a, b):
    pairs = [(a.train, b.train), (a.val, b.val), (a.test, b.test)]
    flat = [(x, y) for left, right in pairs for x, y in zip(_flat(left), _flat(right), strict=True)]
    return (
        all(np.array_equal(x, y) for x, y in flat)
        and (a.permuted, a.merged) == (b.permuted, b.merged)
        and type(a.test) is type(b.test)
    )


def _flat(value):
    return [part for item in value for part in (_flat(item) if isinstance(item, tuple) else [item])]


@pytest.mark.parametrize(
    "scheme",
    [
        NClasses(classes_per_client=2, val_fraction=0.2),
        Shards(shards_per_client=4),
        Shards(shards_per_client=4, merged=True, val_fraction=0.2),
    ],
)
def test_a_stored_split_is_read_back_and_not_made_again(scheme, tmp_path, monkeypatch):
    first = load_or_make(scheme, tiny(), 6, 0, tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.name for path in files} == FILES
    monkeypatch.setattr(Scheme, "split", lambda *_: pytest.fail("made again"))
    again = load_or_make(scheme, tiny(), 6, 0, tmp_path)
    assert same(first, again)
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}


def test_everything_the_split_depends_on_is_in_the_key(tmp_path):
    scheme = NClasses(classes_per_client=2)
    load_or_make(scheme, tiny(), 6, 0, tmp_path)
    load_or_make(scheme, tiny(), 6, 1, tmp_path)
    load_or_make(scheme, tiny(), 4, 0, tmp_path)
    load_or_make(NClasses(classes_per_client=3), tiny(), 6, 0, tmp_path)
    other = tiny()
    other.train.inputs[0, 0, 0, 0] = 1
    load_or_make(scheme, other, 6, 0, tmp_path)
    load_or_make(Shards(shards_per_client=2), tiny(), 6, 0, tmp_path)
    load_or_make(Shards(shards_per_client=2, merged=True), tiny(), 6, 0, tmp_path)
    assert len(list((tmp_path / "splits").iterdir())) == 7


def test_the_table_holds_the_training_counts(tmp_path):
    split = make(tmp_path)
    (table,) = tmp_path.rglob("classes.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [int(row["num_examples"]) for row in rows] == np.diff(split.train.offsets).tolist()
    assert [sum(int(row[name]) for row in rows) for name in ("ant", "bee", "cat", "dog")] == [15] * 4


def test_the_table_of_a_merged_split_counts_what_is_left_to_train_on(tmp_path):
    """20 of each class, of which 4 clients that have them all train on 20 less floor(20/80 * 20)."""
    split = load_or_make(Shards(shards_per_client=4, distinct=True, merged=True), tiny(), 4, 0, tmp_path)
    assert split.train.indices.max() >= 60
    (table,) = tmp_path.rglob("classes.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [int(row["num_examples"]) for row in rows] == [15] * 4
    labels = np.concatenate([np.arange(60) % 4, np.arange(20) % 4])
    for k, row in enumerate(rows):
        expected = np.bincount(labels[split.train.of(k)], minlength=4)
        assert [int(row[name]) for name in ("ant", "bee", "cat", "dog")] == expected.tolist()


def test_a_damaged_split_is_made_again(tmp_path):
    first = make(tmp_path)
    (stored,) = tmp_path.rglob("split.npz")
    whole = stored.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" * 100):
        stored.write_bytes(damaged)
        assert same(first, make(tmp_path))
        assert stored.read_bytes() == whole
    stored.unlink()
    assert same(first, make(tmp_path))
    assert [path.name for path in (tmp_path / "splits").iterdir()] == [stored.parent.name]


def test_no_flipped_byte_goes_unnoticed(tmp_path):
    first = make(tmp_path)
    (stored,) = tmp_path.rglob("split.npz")
    whole = stored.read_bytes()
    labels = tiny().test.labels.numpy()
    noticed = 0
    for position in np.random.default_rng(0).integers(0, len(whole), 100):
        stored.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        found = read_split(stored.parent, 5, 60, labels)
        noticed += found is None
        assert found is None or same(first, found)
    assert noticed > 50


def test_a_well_formed_split_that_was_altered_is_made_again(tmp_path, caplog):
    """Two clients have changed an example; everything fits."""
    first = make(tmp_path)
    (stored,) = tmp_path.rglob("split.npz")
    arrays = dict(np.load(stored))
    indices = arrays["train_indices"]
    indices[[0, -1]] = indices[[-1, 0]]
    np.savez(stored, **arrays)
    assert same(first, make(tmp_path))
    assert "must be whole and readable, but it is not" in caplog.text


def test_a_split_that_does_not_fit_is_refused(tmp_path):
    make(tmp_path)
    (stored,) = tmp_path.rglob("split.npz")
    labels = tiny().test.labels.numpy()
    assert read_split(stored.parent, 5, 60, labels) is not None
    assert read_split(stored.parent, 6, 60, labels) is None
    assert read_split(stored.parent, 5, 59, labels) is None


def test_processes_that_make_the_same_split_agree(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=make, args=(tmp_path, barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert found[0] == found[1] == make(tmp_path).train.indices.tolist()
    (folder,) = (tmp_path / "splits").iterdir()
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_split_that_another_process_finished_first_stays(tmp_path, monkeypatch):
    first = make(tmp_path)
    (folder,) = (tmp_path / "splits").iterdir()
    aside = tmp_path / "aside"
    folder.rename(aside)
    original = Scheme.split

    def overtaken(*args, **kwargs):
        shutil.copytree(aside, folder)
        (folder / "mark").touch()
        return original(*args, **kwargs)

    monkeypatch.setattr(Scheme, "split", overtaken)
    assert same(first, make(tmp_path))
    assert (folder / "mark").exists()
    assert [path.name for path in (tmp_path / "splits").iterdir()] == [folder.name]


def test_an_unusable_cache_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "splits").write_text("a file in the way")
    sentence = r"^paths\.cache must be writable, to keep splits in .*splits, but it is not: .*\.$"
    with pytest.raises(DataError, match=sentence):
        make(tmp_path)


_OWN = """
import numpy as np
from fedfeat.data.partition.parts import Parts
from fedfeat.data.partition.schemes import Scheme

class Iid(Scheme):
    def assign(self, population, rng):
        order = np.arange(len(population.train_labels)){end}
        return Parts(order.copy(), np.array([0, 2, len(order)])), None
"""


def imported(name, monkeypatch):
    """A module as its file is now."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def test_a_scheme_of_ones_own_is_asked_again_when_its_file_has_changed(tmp_path, monkeypatch):
    """And is never taken for fedfeat's scheme of its name."""
    monkeypatch.syspath_prepend(tmp_path)
    found, cache = [], tmp_path / "cache"
    load_or_make(Iid(), tiny(), 2, 0, cache)
    for end in ("", "[::-1]", ""):
        (tmp_path / "own_schemes.py").write_text(_OWN.format(end=end))
        scheme = imported("own_schemes", monkeypatch).Iid()
        found.append(load_or_make(scheme, tiny(), 2, 0, cache).train.indices.tolist())
    assert found[0] == found[1][::-1] == found[2] == [*range(len(found[0]))]
    assert len(list((cache / "splits").iterdir())) == 3


_LISTED = """
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from fedfeat.data.partition.parts import Parts
from fedfeat.data.partition.schemes import Scheme

@dataclass(frozen=True, kw_only=True)
class Listed(Scheme):
    path: str | Path

    def assign(self, population, rng):
        first = [*map(int, Path(self.path).read_text().split())]
        others = np.setdiff1d(np.arange(len(population.train_labels)), first)
        return Parts(np.append(first, others), np.array([0, len(first), len(first) + len(others)])), None
"""


@pytest.mark.parametrize("kind", [str, Path])
def test_a_scheme_that_reads_a_file_is_asked_again_when_that_has_changed(kind, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "listing_schemes.py").write_text(_LISTED)
    scheme = imported("listing_schemes", monkeypatch).Listed(path=kind(tmp_path / "owners.txt"))
    found, cache = [], tmp_path / "cache"
    for owners in ("0", "0 2", "0"):
        (tmp_path / "owners.txt").write_text(owners)
        found.append(load_or_make(scheme, tiny(), 2, 0, cache).train.of(0).tolist())
    assert found == [[0], [0, 2], [0]]
    assert len(list((cache / "splits").iterdir())) == 2
