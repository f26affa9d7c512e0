import numpy as np
import pytest
import torch

from fedfeat.data.examples import Dataset, Examples
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import ClientSplit, IndexTestParts, Parts
from fedfeat.data.partition.permuted import Permuted
from fedfeat.data.partition.schemes import Iid, NClasses, Subsets
from fedfeat.data.pixels import pixel_permutation
from fedfeat.data.transforms import Transform
from fedfeat.errors import ConfigError

NUM = 41


def noise(x, generator):
    """An augmentation that leaves its random numbers in the batch: (B, C, H, W) uint8."""
    return torch.randint(0, 256, x.shape, generator=generator, dtype=torch.uint8)


def numbered(num=NUM, side=2):
    """Images whose pixels are ``4 * index .. 4 * index + 3``: a batch tells which examples it holds."""
    pixels = torch.arange(num * side * side).remainder(256).to(torch.uint8).view(num, 1, side, side)
    labels = torch.arange(num) % 3
    return Dataset(
        "numbered",
        Examples(pixels, labels),
        Examples(pixels.clone(), labels),
        ("a", "b", "c"),
        (0.0,),
        (1.0,),
    )


def federated(scheme=None, num_clients=3, augment=(), seed=0, **kwargs):
    dataset = numbered(**kwargs)
    labels = dataset.train.labels.numpy()
    split = (scheme or Iid()).split(labels, labels, 3, num_clients, seed)
    return FederatedData(dataset, split, Transform(augment=augment), seed=seed)


def ids(x):
    """Example numbers of an unpermuted batch of `numbered`."""
    return (x[:, 0, 0, 0] * 255 / 4).round().long().tolist()


def flat(lists):
    return [item for items in lists for item in items]


def epoch(batches):
    return [ids(x) for x, _ in batches]


def test_an_epoch_holds_every_example_once_and_the_next_one_in_another_order():
    data = federated()
    batches = data.train_batches(1, 0, 0, 4)
    first, second = epoch(batches), epoch(batches)
    own = data.split.train.of(1).tolist()
    assert [len(batch) for batch in first] == [4, 4, 4, 2]
    assert len(batches) == 4
    assert sorted(flat(first)) == sorted(flat(second)) == own
    assert first != second


def test_batches_are_normalised_images_with_their_labels():
    for x, y in federated().train_batches(0, 0, 0, 5):
        assert x.dtype == torch.float32
        assert x.shape[1:] == (1, 2, 2)
        assert y.dtype == torch.int64
        assert y.tolist() == [index % 3 for index in ids(x)]


def test_the_address_decides_the_batches():
    def drawn(seed=0, round_idx=2, client_id=1, augment=()):
        batches = federated(augment=augment).train_batches(client_id, seed, round_idx, 4)
        return [x for _ in range(2) for x, _ in batches]

    def equal(a, b):
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert equal(drawn(), drawn())
    assert not equal(drawn(), drawn(seed=1))
    assert not equal(drawn(), drawn(round_idx=3))
    noisy = drawn(augment=(noise,))
    assert equal(noisy, drawn(augment=(noise,)))
    assert not equal(noisy, drawn(augment=(noise,), round_idx=3))


def test_augmentation_does_not_change_the_order():
    plain, noisy = (federated(augment=augment).train_batches(0, 0, 0, 4) for augment in ((), (noise,)))
    assert [[y.tolist() for _, y in plain] for _ in range(2)] == [
        [y.tolist() for _, y in noisy] for _ in range(2)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("batch_size", [4, 5, 6, 13, None])
def test_what_ranks_share_weighs_every_example_of_a_batch_alike(batch_size, world_size):
    """Ranks take the mean of their gradients; of 14 examples the last batch may have fewer than there are ranks."""
    ranks = [
        federated().train_batches(0, 0, 0, batch_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    whole = federated().train_batches(0, 0, 0, batch_size)
    for batch_idx, (expected, *parts) in enumerate(zip(epoch(whole), *map(epoch, ranks), strict=True)):
        weights = dict.fromkeys(expected, 0.0)
        for batches, part in zip(ranks, parts, strict=True):
            for example in part:
                weights[example] += batches.share(batch_idx)[1] / world_size / len(part)
        assert list(weights.values()) == pytest.approx([1 / len(expected)] * len(expected))
        assert sum(batches.share(batch_idx)[0] for batches in ranks) == pytest.approx(len(expected))


def test_an_iterator_that_is_never_used_draws_nothing():
    used, unused = federated().train_batches(0, 0, 0, 4), federated().train_batches(0, 0, 0, 4)
    iter(unused)
    assert epoch(used) == epoch(unused)


def test_full_batch():
    batches = federated().train_batches(0, 0, 0, None)
    assert [len(batch) for batch in epoch(batches)] == [14]
    assert len(batches) == 1


@pytest.mark.parametrize(
    ("batch_size", "drop", "sizes"),
    [(13, False, [13, 1]), (13, True, [13]), (12, True, [12, 2]), (7, True, [7, 7]), (1, True, [1] * 14)],
)
def test_only_a_last_batch_of_one_is_dropped(batch_size, drop, sizes):
    batches = federated().train_batches(0, 0, 0, batch_size, drop_singleton=drop)
    assert [len(batch) for batch in epoch(batches)] == sizes
    assert len(batches) == len(sizes)


def test_a_client_of_one_example_has_no_batch_where_singletons_are_dropped():
    data = federated(num_clients=NUM)
    for batch_size in (8, None):
        assert len(data.train_batches(0, 0, 0, batch_size)) == 1
        assert epoch(data.train_batches(0, 0, 0, batch_size, drop_singleton=True)) == []


def test_ranks_share_every_batch():
    data = federated()
    whole = epoch(data.train_batches(0, 0, 0, 5))
    shares = [epoch(data.train_batches(0, 0, 0, 5, rank=rank, world_size=2)) for rank in range(2)]
    for batch, left, right in zip(whole, *shares, strict=True):
        assert (left, right) == (batch[::2], batch[1::2])


def test_no_rank_is_left_without_an_example():
    data = federated()
    shares = [epoch(data.train_batches(0, 0, 0, 13, rank=rank, world_size=3)) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 2, 2]
    assert shares[0][1] == shares[1][1] == shares[2][1]
    kept = data.train_batches(0, 0, 0, 11, drop_singleton=True, rank=2, world_size=3)
    assert [len(batch) for batch in epoch(kept)] == [3]  # the last 3 examples would be one per rank


def test_counts():
    data = federated(NClasses(classes_per_client=1))
    slow = [[(data.split.train.of(k) % 3 == c).sum() for c in range(3)] for k in range(3)]
    assert data.class_counts.tolist() == slow
    assert [data.num_examples(k) for k in range(3)] == data.class_counts.sum(axis=1).tolist()
    assert (data.num_clients, len(data.test_sizes()), data.num_test, data.num_val) == (3, 3, NUM, 0)


def test_test_batches_keep_the_order_given():
    data = federated(NClasses(classes_per_client=1), augment=(noise,))
    own = data.test_indices(2)
    batches = list(data.test_batches(own, 6))
    assert flat(ids(x) for x, _ in batches) == own.tolist()
    assert torch.cat([y for _, y in batches]).tolist() == (own % 3).tolist()
    assert data.test_sizes()[2] == len(own)


def test_val_batches_give_one_client_or_all_without_augmentation():
    data = federated(Iid(val_fraction=0.3), augment=(noise,))
    everyone = flat(ids(x) for x, _ in data.val_batches(5))
    assert everyone == data.split.val.indices.tolist()
    assert data.num_val == len(everyone) == 4 + 4 + 3  # 0.3 of 14, 14 and 13 examples, rounded down


def test_pooled_is_one_client_with_everything():
    data = federated(Iid(val_fraction=0.3))
    before = data.class_counts
    pooled = data.pooled()
    assert (pooled.num_clients, len(pooled.test_sizes())) == (1, 3)
    assert pooled.class_counts.tolist() == [before.sum(axis=0).tolist()]
    assert sorted(pooled.split.train.indices) == sorted(data.split.train.indices)
    assert pooled.split.test is data.split.test
    assert pooled.num_val == data.num_val
    assert data.num_clients == 3
    assert sorted(flat(epoch(pooled.train_batches(0, 0, 0, 8)))) == sorted(data.split.train.indices)


def test_pooled_counts_overlapping_parts_once_and_validates_on_no_training_example():
    data = federated(Subsets(classes=[[0, 1], [1, 2]], val_fraction=0.5), 2).pooled()
    train, val = data.split.train.indices, data.split.val.indices
    assert len(np.unique(train)) == len(train)
    assert not set(train) & set(val)
    assert set(train) | set(val) == set(range(NUM))


def test_permuted_pixels_follow_the_owner_of_an_example():
    data = federated(Permuted(val_fraction=0.2), seed=5, num=30, side=2)
    plain = numbered(30).train.inputs.flatten(2) / 255
    owner = {int(i): k for parts in data.split[:2] for k in range(3) for i in parts.of(k)}
    orders = [torch.from_numpy(pixel_permutation(5, k, 4)) for k in range(3)]
    assert len({tuple(order.tolist()) for order in orders}) > 1

    def assert_permuted(batches):
        for x, _ in batches:
            for image in x.flatten(2):
                index = round(float(image.min()) * 255 / 4)
                torch.testing.assert_close(image, plain[index][:, orders[owner[index]]])

    for k in range(3):
        assert_permuted(data.train_batches(k, 0, 0, 4))
    assert_permuted(data.val_batches(4))
    assert_permuted(data.pooled().train_batches(0, 0, 0, 7))
    for x, _ in data.test_batches(np.arange(30), 30, client_id=1):
        torch.testing.assert_close(x.flatten(2), plain[:, :, orders[1]])
    for x, _ in data.test_batches(np.arange(30), 30):
        torch.testing.assert_close(x.flatten(2), plain)


def test_permuted_needs_images():
    rows = Examples(torch.zeros(4, 5), torch.tensor([0, 1, 0, 1]))
    dataset = Dataset("rows", rows, rows, ("a", "b"), (), ())
    parts = Parts(np.arange(4), np.array([0, 2, 4]))
    split = ClientSplit(parts, parts, IndexTestParts(parts), permuted=True)
    with pytest.raises(ConfigError, match=r"^partition must not be permuted .* rows are no images"):
        FederatedData(dataset, split, Transform())
