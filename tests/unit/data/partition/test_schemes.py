from pathlib import Path

import hydra
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fedfeat.data.partition import schemes
from fedfeat.data.partition.checks import check_owners
from fedfeat.data.partition.parts import (
    ClassTestParts,
    IndexTestParts,
    Parts,
    class_counts,
    hold_out,
)
from fedfeat.data.partition.tables import shard_rows
from fedfeat.data.pixels import pixel_permutation
from fedfeat.errors import ConfigError, DataError

CONFIGS = Path(__file__).parents[4] / "configs" / "partition"
TRAIN = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
TEST = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 15))
COLUMNS = {"client": np.arange(600) % 7}, {"client": np.arange(150) % 7}


def built(name, **overrides):
    config = OmegaConf.merge(OmegaConf.load(CONFIGS / f"{name}.yaml"), overrides)
    config.pop("defaults", None)
    return hydra.utils.instantiate(config)


def cut(scheme, num_clients=10, seed=0, columns=COLUMNS):
    return scheme.split(TRAIN, TEST, 10, num_clients, seed, *columns)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_config_builds_a_scheme_that_splits(name):
    num_clients = {"subsets": 2, "natural": 7}.get(name, 10)
    split = cut(built(name, val_fraction=0.1), num_clients)
    tests = split.test.parts.indices if split.merged else []
    held = np.concatenate([split.train.indices, split.val.indices, tests])
    assert np.array_equal(np.sort(held), np.arange(750 if split.merged else 600))
    assert split.train.num_clients == split.val.num_clients == len(split.test.sizes()) == num_clients
    assert split.permuted == (name == "permuted")
    whole = cut(built(name), num_clients)
    assert np.array_equal(whole.test.sizes(), split.test.sizes())
    assert not len(whole.val.indices)


def test_same_seed_same_split_and_another_seed_another():
    scheme = schemes.NClasses(classes_per_client=3)
    first, again, other = cut(scheme), cut(scheme), cut(scheme, seed=1)
    assert np.array_equal(first.train.indices, again.train.indices)
    assert not np.array_equal(first.train.indices, other.train.indices)


def test_the_seed_chooses_what_is_held_out():
    """Subsets draw nothing else."""
    scheme = schemes.Subsets(classes=[[0, 1], [2]], val_fraction=0.2)
    first, again, other = (cut(scheme, 2, seed) for seed in (0, 0, 1))
    assert first.val.indices.tolist() == again.val.indices.tolist() != other.val.indices.tolist()


def test_what_one_client_validates_on_no_other_trains():
    scheme = schemes.Subsets(classes=[[0, 1], [1, 2], [2]], val_fraction=0.3)
    split = cut(scheme, 3)
    held, trained = (set(parts.indices.tolist()) for parts in (split.val, split.train))
    assert held
    assert not held & trained
    for k, classes in enumerate(scheme.classes):
        own = set(split.train.of(k).tolist()) | set(split.val.of(k).tolist())
        assert own == {i for i, label in enumerate(TRAIN) if label in classes}
        assert {TRAIN[i] for i in split.train.of(k)} == set(classes)
    # Where no lists overlap each client gives its own share, as before there were such lists.
    apart = cut(schemes.Subsets(classes=[[0, 1], [2]], val_fraction=0.3), 2)
    assert all(
        len(apart.val.of(k)) == int(0.3 * np.isin(TRAIN, c).sum()) for k, c in enumerate(([0, 1], [2]))
    )


@pytest.mark.parametrize(
    ("indices", "owners"), [([0, 1, 1, 2], "[0, 1]"), ([0, 1, 2, 1], "[0, 1]"), ([1, 1, 0, 2], "[0]")]
)
def test_two_owners_are_one_too_many(indices, owners):
    """Of two clients with two examples each."""
    check_owners(Parts(np.array([0, 2, 1, 3]), np.array([0, 2, 4])))
    with pytest.raises(DataError) as caught:
        check_owners(Parts(np.array(indices), np.array([0, 2, 4])))
    assert str(caught.value).endswith(f"but example 1 is with the clients {owners}.")


def test_distinct_shards_that_cannot_be_name_their_own_key():
    with pytest.raises(
        ConfigError, match=r"^partition\.shards_per_client must be between 1 and the 3 classes"
    ):
        shard_rows(3, 3, 4, np.random.default_rng(0), distinct=True)


def test_distinct_shards_are_of_distinct_classes():
    for distinct in (True, False):
        split = [cut(schemes.Shards(shards_per_client=2, distinct=distinct), seed=seed) for seed in range(10)]
        held = {len(set(TRAIN[one.train.of(k)])) for one in split for k in range(10)}
        assert held == ({2} if distinct else {1, 2})


def test_test_parts_are_all_test_examples_of_the_clients_classes():
    split = cut(schemes.NClasses(classes_per_client=3))
    assert (split.test.sizes() == 45).all()
    for k in range(10):
        expected = np.flatnonzero(np.isin(TEST, TRAIN[split.train.of(k)]))
        assert np.array_equal(split.test.of(k), expected)


def test_shards_are_tested_on_disjoint_parts_of_the_classes_they_train():
    split = cut(schemes.Shards(shards_per_client=2))
    assert np.array_equal(np.sort(split.test.parts.indices), np.arange(150))
    for k in range(10):
        assert set(TEST[split.test.of(k)]) == set(TRAIN[split.train.of(k)])


def test_natural_cuts_the_test_set_by_the_same_column_or_else_by_classes():
    split = cut(schemes.Natural(column="client"), 7)
    assert split.test.of(3).tolist() == list(range(3, 150, 7))
    assert isinstance(cut(schemes.Natural(column="client"), 7, columns=(COLUMNS[0], {})).test, ClassTestParts)
    strange = COLUMNS[0], {"client": np.full(150, 99)}
    assert isinstance(cut(schemes.Natural(column="client"), 7, columns=strange).test, ClassTestParts)


def test_refusals_name_key_and_value():
    with pytest.raises(ConfigError, match=r"partition.column must .*\(client\), but it is 'user'\.$"):
        cut(schemes.Natural(column="user"))
    with pytest.raises(ConfigError, match=r"federation.num_clients must equal .*\(2\), but it is 10\.$"):
        cut(schemes.Subsets(classes=[[0], [1]]))
    with pytest.raises(ConfigError, match=r"federation.num_clients must be at least 1, but it is 0\.$"):
        cut(schemes.Iid(), 0)


@st.composite
def random_parts(draw):
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=8))
    indices = np.random.default_rng(draw(st.integers(0, 99))).permutation(sum(sizes))
    return Parts(indices.astype(np.int64), np.cumsum([0, *sizes]))


@settings(max_examples=60, deadline=None)
@given(random_parts(), st.floats(0, 0.99), st.integers(0, 99))
def test_hold_out_takes_its_share_and_leaves_one(parts, fraction, seed):
    train, val = hold_out(parts, fraction, np.random.default_rng(seed))
    for k in range(parts.num_clients):
        size = len(parts.of(k))
        assert len(val.of(k)) <= fraction * size + 1e-6
        assert len(train.of(k)) >= min(size, 1)
        assert sorted([*train.of(k), *val.of(k)]) == sorted(parts.of(k))


def test_hold_out_by_hand():
    rng = np.random.default_rng(0)
    _, val = hold_out(Parts(np.arange(113), np.array([0, 100, 110, 112, 113])), 0.29, rng)
    assert np.diff(val.offsets).tolist() == [29, 2, 0, 0]
    _, most = hold_out(Parts(np.arange(3), np.array([0, 2, 3])), 0.99, rng)
    assert np.diff(most.offsets).tolist() == [1, 0]


@settings(max_examples=60, deadline=None)
@given(random_parts(), st.floats(0, 0.99), st.integers(0, 99), st.integers(1, 4))
def test_hold_out_leaves_an_example_of_every_class(parts, fraction, seed, num_classes):
    """Nothing else changes: what is taken is taken without labels too, but for the last example of a class."""
    labels = np.random.default_rng(seed).integers(num_classes, size=len(parts.indices))
    train, val = hold_out(parts, fraction, np.random.default_rng(seed), labels)
    _, plain = hold_out(parts, fraction, np.random.default_rng(seed))
    for k in range(parts.num_clients):
        assert sorted([*train.of(k), *val.of(k)]) == sorted(parts.of(k))
        assert set(labels[train.of(k)]) == set(labels[parts.of(k)])
        put_back = set(plain.of(k)) - set(val.of(k))
        assert set(val.of(k)) <= set(plain.of(k))
        gone = set(labels[parts.of(k)]) - set(labels[list(set(parts.of(k)) - set(plain.of(k)))])
        assert sorted(labels[list(put_back)]) == sorted(gone)


@settings(max_examples=60, deadline=None)
@given(random_parts(), st.integers(0, 99))
def test_both_test_parts_agree_with_a_slow_reference(parts, seed):
    rng = np.random.default_rng(seed)
    values = rng.random(len(parts.indices))
    labels = rng.integers(0, 4, len(parts.indices))
    by_class = ClassTestParts(rng.random((parts.num_clients, 4)) < 0.5, labels)
    for test in (IndexTestParts(parts), by_class):
        lists = [test.of(k) for k in range(parts.num_clients)]
        assert test.sizes().tolist() == [len(own) for own in lists]
        slow = [values[own].mean() if len(own) else np.nan for own in lists]
        np.testing.assert_allclose(test.means(values), slow, rtol=1e-12)
    for k in range(parts.num_clients):
        assert by_class.of(k).tolist() == [i for i, label in enumerate(labels) if by_class.mask[k, label]]


def test_a_nan_of_one_class_stays_with_its_holders():
    test = ClassTestParts(np.array([[True, False], [True, True]]), np.array([0, 0, 1]))
    np.testing.assert_array_equal(test.means(np.array([1.0, 2.0, np.nan])), [1.5, np.nan])


def test_class_counts_by_hand():
    parts = Parts(np.array([0, 1, 3, 2]), np.array([0, 3, 3, 4]))
    assert class_counts(parts, np.array([1, 1, 0, 2]), 3).tolist() == [[0, 2, 1], [0, 0, 0], [1, 0, 0]]


def test_pixel_permutations_are_fixed_per_client():
    first = pixel_permutation(0, 3, 64)
    assert np.array_equal(np.sort(first), np.arange(64))
    assert np.array_equal(first, pixel_permutation(0, 3, 64))
    assert not np.array_equal(first, pixel_permutation(0, 4, 64))
    assert not np.array_equal(first, pixel_permutation(1, 3, 64))


def test_ten_thousand_clients_store_no_test_lists():
    labels = np.random.default_rng(0).integers(0, 10, 60_000)
    split = schemes.Iid().split(labels, labels[:10_000], 10, 10_000, 0)
    assert split.test.mask.nbytes == 100_000
    # Per client 6 examples, hence at most 6 classes of about 1000 test examples each.
    assert 2_000 < split.test.means(np.ones(10_000)).sum() == 10_000
    assert split.test.sizes().max() < 7_000
