"""`partition.split=merged`: training and test set cut as one, and then by each client."""

import csv
import json

import numpy as np
import pytest
import torch

from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.merged import cut_anew
from fedfeat.data.partition.parts import ClientSplit, IndexTestParts, Parts
from fedfeat.data.partition.schemes import Iid, Shards, shards
from fedfeat.data.transforms import Transform
from fedfeat.types import Survey

TRAIN = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 50))
TEST = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 10))
EVERY = np.concatenate([TRAIN, TEST])


def parts(*lists):
    return Parts(np.concatenate(lists).astype(np.int64), np.cumsum([0, *map(len, lists)]))


def merged(num_clients=10, seed=0, **arguments):
    scheme = shards(**{"shards_per_client": 2, "split": "merged"} | arguments)
    return scheme.split(TRAIN, TEST, 10, num_clients, seed)


def numbered():
    """Six training and three test images, each full of its own number; the columns say it too."""

    def full(start, stop, **columns):
        pixels = torch.arange(start, stop, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
        return Examples(pixels.contiguous(), torch.arange(start, stop) % 3, columns)

    first, last = np.arange(6), np.arange(6, 9)
    train, test = full(0, 6, number=first, writer=first), full(6, 9, number=last)
    return Dataset("numbered", train, test, ("a", "b", "c"), (0.25,), (0.5,))


# Client 0 has 7, 0, 4 and is tested on 2; client 1 has 3, holds 8 out for validation, and is tested on 6 and 1.
SPLIT = ClientSplit(
    parts([7, 0, 4], [3]), parts([], [8]), IndexTestParts(parts([2], [6, 1])), permuted=True, merged=True
)


def numbers(examples):
    return examples.inputs[:, 0, 0, 0].tolist()


def test_every_example_has_one_client_that_trains_validates_or_is_tested_on_it():
    split = merged(val_fraction=0.2)
    assert split.merged
    everything = np.concatenate([split.train.indices, split.val.indices, split.test.parts.indices])
    assert np.array_equal(np.sort(everything), np.arange(600))
    # 60 examples, a sixth of them tested on as 100 of 600 are, and a fifth of the other 50 for validation.
    for sizes in (np.diff(split.train.offsets), np.diff(split.val.offsets), split.test.sizes()):
        assert len(set(sizes)) == 1
    assert (len(split.train.of(0)), len(split.val.of(0)), len(split.test.of(0))) == (40, 10, 10)


def test_a_client_has_one_shard_for_each_of_its_labels():
    """60 of each class among the two shards that every class has: 30 of each label, 60 where both are one."""
    split, twice = merged(), 0
    for k in range(10):
        own = np.concatenate([split.train.of(k), split.test.of(k)])
        counts = np.bincount(EVERY[own], minlength=10)
        assert sorted(counts[counts > 0]) in ([30, 30], [60])
        twice += 60 in counts
    assert twice < 10


def test_both_parts_are_drawn_from_both_sets():
    split = merged()
    for indices in (split.train.indices, split.test.parts.indices):
        share = (indices >= len(TRAIN)).mean()
        # A sixth, with a standard deviation of at most sqrt(1/6 * 5/6 / 100) = 0.037.
        assert abs(share - 1 / 6) < 0.15
    same = merged()
    assert np.array_equal(split.test.parts.indices, same.test.parts.indices)
    assert not np.array_equal(split.test.parts.indices, merged(seed=1).test.parts.indices)


def test_validation_does_not_change_the_test():
    assert np.array_equal(merged().test.parts.indices, merged(val_fraction=0.3).test.parts.indices)


@pytest.mark.parametrize(("num_clients", "per_client", "sizes"), [(100, 2, (500, 100)), (500, 5, (100, 20))])
def test_clients_of_cifar_keep_their_sizes(num_clients, per_client, sizes):
    labels = np.arange(50_000) % 10, np.arange(10_000) % 10
    for split in ("native", "merged"):
        found = shards(shards_per_client=per_client, split=split).split(*labels, 10, num_clients, 0)
        assert set(np.diff(found.train.offsets)) == {sizes[0]}
        assert set(found.test.sizes()) == {sizes[1]}
        assert found.merged == (split == "merged")


def test_a_client_of_few_examples_keeps_one_to_train_on():
    """Two classes of 1 + 3 examples, two clients of one class: floor(6/8 * 4) = 3 are held out."""
    split = shards(shards_per_client=1, split="merged").split(np.arange(2), np.arange(6) % 2, 2, 2, 0)
    assert (np.diff(split.train.offsets).tolist(), split.test.sizes().tolist()) == ([1, 1], [3, 3])


def test_native_is_as_it_was():
    assert shards(shards_per_client=3, distinct=True) == Shards(shards_per_client=3, distinct=True)


def test_the_data_set_is_cut_anew_by_hand():
    """Tested on are 1, 2 and 6; all others train, also 5, which nobody has."""
    dataset, split = cut_anew(numbered(), SPLIT)
    assert numbers(dataset.train) == dataset.train.columns["number"].tolist() == [0, 3, 4, 5, 7, 8]
    assert numbers(dataset.test) == dataset.test.columns["number"].tolist() == [1, 2, 6]
    assert dataset.train.labels.tolist() == [0, 0, 1, 2, 1, 2]
    assert dataset.test.labels.tolist() == [1, 2, 0]
    assert set(dataset.train.columns) == set(dataset.test.columns) == {"number"}  # test images have no writer
    assert (dataset.mean, dataset.std, dataset.classes) == ((0.25,), (0.5,), ("a", "b", "c"))
    assert [split.train.of(k).tolist() for k in range(2)] == [[4, 0, 2], [1]]
    assert [split.val.of(k).tolist() for k in range(2)] == [[], [5]]
    assert [split.test.of(k).tolist() for k in range(2)] == [[1], [2, 0]]
    assert (split.permuted, split.merged) == (True, False)


def test_other_splits_leave_data_alone():
    dataset, split = numbered(), Iid().split(np.arange(6) % 3, np.arange(3), 3, 2, 0)
    assert [a is b for a, b in zip(cut_anew(dataset, split), (dataset, split), strict=True)] == [True, True]


def test_clients_train_and_are_tested_on_what_the_split_says():
    data = FederatedData(numbered(), SPLIT._replace(permuted=False), Transform())

    def read(batches):
        """Undo (x / 255 - 0.25) / 0.5."""
        return [round(((pixel * 0.5 + 0.25) * 255).item()) for x, _ in batches for pixel in x[:, 0, 0, 0]]

    trained, tested = {0: [0, 4, 7], 1: [3]}, {0: [2], 1: [6, 1]}
    for k in range(2):
        assert sorted(read(data.train_batches(k, 0, 0, 2))) == trained[k]
        assert read(data.test_batches(data.test_indices(k), 8)) == tested[k]
    assert read(data.val_batches(8)) == [8]
    assert read(data.test_batches(np.arange(data.num_test), 8)) == [1, 2, 6]
    # 0 and 3 are of class a, 4 and 7 of class b.
    assert data.class_counts.tolist() == [[1, 2, 0], [1, 0, 0]]
    assert data.test_means(np.array([1.0, 0.5, 0.0])).tolist() == [0.5, 0.5]
    shared = {
        source: data.unlabelled(Survey(source, 9), 0, 0) for source in ("train_pool", "test_unlabelled")
    }
    assert sorted(shared["train_pool"][:, 0, 0, 0].tolist()) == [0, 3, 4, 7]
    assert sorted(shared["test_unlabelled"][:, 0, 0, 0].tolist()) == [1, 2, 6]
    again = FederatedData(data.dataset, data.split, Transform())
    assert again.dataset is data.dataset


def test_a_run_is_tested_on_all_that_clients_held_out(cli, small, tmp_path):
    """24 of 84 examples are test data, and 21 of each client floor(24/84 * 21) = 6."""
    words = [word for word in small if not word.startswith("partition")]
    words += ["partition=shards", "partition.shards_per_client=3", "partition.split=merged"]
    outcome = cli(*words)
    assert outcome.code == 0, outcome.stderr
    (key,) = tmp_path.rglob("key.json")
    assert json.loads(key.read_text())["parameters"]["merged"] is True
    with open(tmp_path / "run" / "clients.csv", newline="") as file:
        last = [float(row["global_acc"]) for row in csv.DictReader(file) if row["round"] == "3"]
    final = json.loads((tmp_path / "run" / "summary.json").read_text())["final"]
    assert len(last) == 4
    assert all(acc * 6 == pytest.approx(round(acc * 6)) for acc in last)
    # Test parts of equal size that are the test set together.
    assert final["global/acc"] == pytest.approx(np.mean(last))
    assert final["global/client_acc_mean"] == pytest.approx(np.mean(last))
