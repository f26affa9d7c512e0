"""Inputs without labels that a server shares with all clients."""

from collections import Counter

import numpy as np
import pytest
import torch

from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import ClientSplit, IndexTestParts, Parts
from fedfeat.data.partition.permuted import Permuted
from fedfeat.data.transforms import Transform
from fedfeat.data.unlabelled import draw_unlabelled
from fedfeat.errors import DataError
from fedfeat.types import Survey


def parts(*lists):
    return Parts(np.concatenate(lists).astype(np.int64), np.cumsum([0, *map(len, lists)]))


# Nobody holds 12 to 19; two clients share example 3, and two test parts 1.
SPLIT = ClientSplit(
    parts([0, 1, 2, 3], [3, 4, 5, 6, 7]), parts([8], [9, 10, 11]), IndexTestParts(parts([0, 1], [1, 5]))
)


def drawn(source="train_pool", size=100, seed=0, round_idx=0, split=SPLIT, num_public=0):
    return draw_unlabelled(split, source, size, seed, round_idx, num_public).tolist()


@pytest.mark.parametrize(
    ("source", "pool"),
    [("train_pool", range(8)), ("heldout", range(8, 12)), ("test_unlabelled", [0, 1, 5])],
)
def test_each_source_is_what_the_clients_hold_of_it_once(source, pool):
    found = drawn(source)
    assert sorted(found) == list(pool)
    assert sorted(drawn(source, size=2)) != list(pool)
    assert drawn(source, size=2) == found[:2]


def test_the_address_is_seed_and_round():
    first = drawn(size=6)
    assert drawn(size=6) == first
    assert len({tuple(drawn(size=6, round_idx=t)) for t in range(8)}) == 8
    assert drawn(size=6, seed=1) != first


def test_who_holds_what_does_not_matter():
    """The same examples split otherwise: the server asks for inputs, not for clients."""
    other = SPLIT._replace(train=parts([7, 6, 5], [4], [3, 2, 1, 0]))
    assert drawn(split=other) == drawn()


def test_every_example_is_drawn_equally_often():
    """400 draws of 2 of 8: 100 each, with a standard deviation of sqrt(400 / 4 * 3 / 4) = 8.7."""
    counts = Counter(i for t in range(400) for i in drawn(size=2, round_idx=t))
    assert sum(counts.values()) == 800
    assert max(abs(counts[i] - 100) for i in range(8)) < 4 * 8.7


def test_an_empty_source_is_refused():
    empty = SPLIT._replace(val=parts([], []))
    sentence = r"^The source 'heldout' of inputs that are shared must hold examples, but it is empty\.$"
    with pytest.raises(DataError, match=sentence):
        drawn("heldout", split=empty)
    assert sorted(drawn("public", num_public=4)) == [0, 1, 2, 3]


def noise(x, generator):
    """An augmentation that gives its random numbers."""
    return torch.randint(0, 256, x.shape, generator=generator, dtype=torch.uint8)


def images(split=SPLIT, augment=(), seed=0):
    """Training image i is full of i, test image i of 100 + i; mean 0.2 and deviation 0.5."""

    def full(start):
        pixels = torch.arange(start, start + 20, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
        return Examples(pixels.contiguous(), torch.arange(20) % 2)

    dataset = Dataset("full", full(0), full(100), ("a", "b"), (0.2,), (0.5,))
    return FederatedData(dataset, split, Transform(augment=augment), seed=seed)


@pytest.mark.parametrize(("source", "start"), [("train_pool", 0), ("heldout", 0), ("test_unlabelled", 100)])
def test_inputs_come_as_they_are_stored_and_are_normalised_by_who_reads_them(source, start):
    data = images(augment=(noise,))
    raw = data.unlabelled(Survey(source, 3), seed=0, round_idx=4)
    assert raw.dtype == torch.uint8
    assert raw[:, 0, 0, 0].tolist() == [start + i for i in drawn(source, 3, round_idx=4)]
    expected = (raw.double() / 255 - 0.2) / 0.5
    torch.testing.assert_close(data.plain(raw).double(), expected, rtol=0, atol=1e-6)


def test_augmented_inputs_are_ready_and_have_an_address_of_their_own():
    data = images(augment=(noise,))
    survey = Survey("train_pool", 6, augment=True)
    found = data.unlabelled(survey, seed=0, round_idx=2)
    assert found.dtype == torch.float32
    assert torch.equal(data.plain(found), found)
    pixels = (found * 0.5 + 0.2) * 255
    assert len(pixels.round().unique()) > 10  # noise, and no longer images of one value
    assert torch.equal(found, images(augment=(noise,)).unlabelled(survey, 0, 2))
    assert not torch.equal(found, data.unlabelled(survey, 0, 3))
    assert not torch.equal(found, data.unlabelled(survey, 1, 2))


def test_all_clients_get_the_same_pixels_under_the_permuted_partition():
    """In the order in which they are stored, whosever they are."""
    labels = np.arange(20) % 2
    data = images(Permuted().split(labels, labels, 2, 4, 0))
    found = data.unlabelled(Survey("train_pool", 20), seed=0, round_idx=0)
    assert sorted(found[:, 0, 0, 0].tolist()) == list(range(20))
    stored = data.dataset.train.inputs[found[:, 0, 0, 0].long()]
    assert torch.equal(found, stored)


def test_clients_that_take_no_part_lend_nothing():
    data = images().without(1)
    found = data.unlabelled(Survey("train_pool", 20), seed=0, round_idx=0)
    assert sorted(found[:, 0, 0, 0].tolist()) == [0, 1, 2, 3]
