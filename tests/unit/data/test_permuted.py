"""Clients with an order of the pixels each, whoever holds what: one image may be with several of them."""

import numpy as np
import pytest
import torch

from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import class_counts
from fedfeat.data.partition.permuted import Copies, Permuted
from fedfeat.data.partition.schemes import Dirichlet, Iid, NClasses, Shards, Subsets
from fedfeat.data.partition.split_store import load_or_make
from fedfeat.data.pixels import pixel_permutation
from fedfeat.data.transforms import Transform
from fedfeat.data.unlabelled import images_by_class
from fedfeat.errors import ConfigError, DataError

NUM, SIDE, SEED = 24, 3, 5
LABELS = np.arange(NUM) % 4


def dataset():
    """Image ``i`` has the pixels ``9 i, ..., 9 i + 8``: a pixel says of which image it is, and where it was."""
    pixels = torch.arange(NUM * SIDE**2).to(torch.uint8).view(NUM, 1, SIDE, SIDE)
    train, test = (Examples(pixels.clone(), torch.from_numpy(LABELS)) for _ in range(2))
    return Dataset("counted", train, test, tuple("abcd"), (0.0,), (1 / 255,))


def federated(scheme, num_clients=3):
    split = scheme.split(LABELS, LABELS, 4, num_clients, SEED)
    return FederatedData(dataset(), split, Transform(), seed=SEED)


def order(client_id):
    return pixel_permutation(SEED, client_id, SIDE**2).tolist()


def seen(batches):
    """Image and order of the pixels of all that batches hold."""
    rows = [row.round().long() for x, _ in batches for row in x.flatten(1)]
    return [(int(row.min()) // 9, (row % 9).tolist()) for row in rows]


def labels_of(batches):
    return [int(y) for _, labels in batches for y in labels]


def test_with_full_copies_every_client_sees_every_image_in_its_own_order():
    data = federated(Permuted(inner=Copies()))
    assert len({tuple(order(k)) for k in range(3)}) == 3
    for k in range(3):
        assert data.num_examples(k) == NUM
        for found in (data.train_batches(k, 0, 0, 7), data.labelled_batches(k, 7)):
            assert sorted(seen(found)) == [(i, order(k)) for i in range(NUM)]
        assert labels_of(data.labelled_batches(k, 7)) == LABELS.tolist()
        tests = data.test_batches(data.test_indices(k), 10, k)
        assert seen(tests) == [(i, order(k)) for i in range(NUM)]
    assert data.class_counts.tolist() == [[6] * 4] * 3


def test_with_subsets_of_classes_owners_see_their_classes_in_their_order():
    data = federated(Permuted(inner=Subsets(classes=[[0, 2], [1, 3]])), 2)
    for k in range(2):
        expected = [(i, order(k)) for i in range(k, NUM, 2)]
        assert seen(data.labelled_batches(k, 5)) == expected
        assert seen(data.test_batches(data.test_indices(k), 5, k)) == expected


def test_an_inner_scheme_deals_what_it_deals_alone():
    for inner in (Iid(), NClasses(classes_per_client=2), Dirichlet(alpha=0.5, min_size=1)):
        alone, within = (one.split(LABELS, LABELS, 4, 3, SEED) for one in (inner, Permuted(inner=inner)))
        assert np.array_equal(alone.train.indices, within.train.indices)
        assert (alone.permuted, within.permuted) == (False, True)
    merged = federated(Permuted(inner=Shards(shards_per_client=4, distinct=True, merged=True)), 2)
    assert len(merged.dataset.train) + len(merged.dataset.test) == 2 * NUM
    for k in range(2):
        assert all(found == order(k) for _, found in seen(merged.labelled_batches(k, 9)))


def test_copies_cost_numbers_and_no_images():
    data = federated(Permuted(inner=Copies()), 5)
    images = data.dataset.train.inputs
    assert data._train.inputs.data_ptr() == images.data_ptr()
    assert data.entries.train.shape == (5 * NUM,)
    assert data._pixels._tables.shape == (5, SIDE**2)


def test_validation_examples_are_seen_by_the_client_that_holds_them_out():
    data = federated(Permuted(inner=Copies(), val_fraction=0.25))
    expected = [(int(i), order(k)) for k in range(3) for i in data.split.val.of(k)]
    assert seen(data.val_batches(7)) == expected
    assert data.num_val == 3 * NUM // 4
    for k in range(3):
        own = {image for image, _ in seen(data.labelled_batches(k, 7))}
        assert own == set(range(NUM)) - set(data.split.val.of(k).tolist())


@pytest.mark.parametrize("val_fraction", [0.0, 0.25])
def test_pooled_copies_are_one_example_for_each_client(val_fraction):
    data = federated(Permuted(inner=Copies(), val_fraction=val_fraction))
    pooled = data.pooled()
    expected = sorted(both for k in range(3) for both in seen(data.labelled_batches(k, 7)))
    assert sorted(seen(pooled.labelled_batches(0, 7))) == expected
    assert sorted(seen(pooled.train_batches(0, 0, 0, 7))) == expected
    assert sorted(seen(pooled.val_batches(7))) == sorted(seen(data.val_batches(7)))
    assert pooled.num_examples(0) == len(expected) == pooled.class_counts.sum()
    assert sorted(seen(pooled.pooled().labelled_batches(0, 7))) == expected
    assert [image for image, _ in seen(pooled.labelled_batches(0, 7))] == [image for image, _ in expected]


def test_left_out_and_poorer_clients_keep_their_orders():
    data = federated(Permuted(inner=Copies()), 4)
    fewer = data.without(1)
    assert fewer.num_clients == 3
    assert seen(fewer.labelled_batches(2, 7)) == [(i, order(2)) for i in range(NUM)]
    assert seen(fewer.whole.labelled_batches(3, 7)) == [(i, order(3)) for i in range(NUM)]
    less = data.reduced(1.0, 0.5, SEED)
    assert all(found == order(3) for _, found in seen(less.labelled_batches(3, 7)))
    assert less.num_examples(3) == NUM // 2


def test_images_of_each_class_are_seen_as_some_client_sees_them():
    data = federated(Permuted(inner=Copies()))
    orders = [order(k) for k in range(3)]
    for label, images in enumerate(images_by_class(data, 9, SEED)):
        found = seen([(images, None)])
        assert len(found) == 9
        assert all(image % 4 == label and one in orders for image, one in found)


def test_images_of_each_class_are_the_same_for_every_client_in_its_own_order():
    """Each once: of the six of a class, which all three clients hold."""
    data = federated(Permuted(inner=Copies()))
    for client_id in range(3):
        for label, images in enumerate(images_by_class(data, 9, SEED, client_id)):
            found = seen([(images, None)])
            assert all(one == order(client_id) for _, one in found)
            assert sorted(image for image, _ in found) == [*range(label, NUM, 4)]


def test_the_server_may_have_an_order_of_its_own():
    at_clients, at_server = (
        federated(Permuted(inner=Copies(), global_order=name)) for name in ("clients", "server")
    )
    every = np.arange(NUM)
    assert seen(at_clients.test_batches(every, 9)) == [(i, list(range(9))) for i in range(NUM)]
    assert seen(at_server.test_batches(every, 9)) == [(i, order(None)) for i in range(NUM)]
    assert order(None) not in [*map(order, range(3)), list(range(9))]
    assert seen(at_server.test_batches(every, 9, 1)) == [(i, order(1)) for i in range(NUM)]


def test_no_other_split_gives_an_example_to_two_clients():
    sentence = (
        r"^partition must give no example to several clients .* example 0 is with the clients \[0, 1, 2\]\.$"
    )
    with pytest.raises(DataError, match=sentence):
        Copies().split(LABELS, LABELS, 4, 3, SEED)
    overlapping = Subsets(classes=[[0, 1], [1, 2]]).split(LABELS, LABELS, 4, 2, SEED)
    assert class_counts(overlapping.train, LABELS, 4).tolist() == [[6, 6, 0, 0], [0, 6, 6, 0]]


def test_refusals_name_the_key_within():
    cases = [
        (lambda: Permuted(inner=Permuted()), r"^partition\.inner must be .* but it is 'Permuted'\.$"),
        (lambda: Permuted(inner=Iid(val_fraction=0.1)), r"^partition\.inner\.val_fraction must be 0 .* is 0\.1\.$"),
        (lambda: federated(Permuted(inner=Subsets(classes=[[0]]))), r"lists in partition\.inner\.classes \(1\)"),
        (lambda: federated(Permuted(inner=NClasses(classes_per_client=9))), r"^partition\.inner\.classes_per_client"),
    ]  # fmt: skip
    for make, sentence in cases:
        with pytest.raises(ConfigError, match=sentence):
            make()


def test_stored_splits_tell_inner_schemes_apart(tmp_path):
    schemes = [
        Permuted(), Permuted(inner=Copies()), Permuted(inner=Copies(), global_order="server"), Iid(),
        Permuted(inner=Subsets(classes=[[0, 1], [2, 3]])),
    ]  # fmt: skip
    for _ in range(2):  # the second time from disk
        splits = [load_or_make(scheme, dataset(), 2, SEED, tmp_path) for scheme in schemes]
        flags = [(split.permuted, split.server_order) for split in splits]
        assert flags == [(True, False), (True, False), (True, True), (False, False), (True, False)]
        assert [len(split.train.indices) for split in splits] == [NUM, 2 * NUM, 2 * NUM, NUM, NUM]
    assert len(list((tmp_path / "splits").iterdir())) == len(schemes)
