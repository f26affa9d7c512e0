"""Validation examples where clients share some: everyone holds the same ones out."""

import numpy as np

from fedfeat.data.partition.parts import class_counts, hold_out_together, parts_of


def test_what_is_held_out_together_leaves_every_client_each_of_its_classes():
    """Sixty clients who have drawn four of twelve examples of three classes: half of all would empty many."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 4)
    drawn = np.concatenate([rng.choice(12, 4, replace=False) for _ in range(60)])
    parts = parts_of(drawn, np.full(60, 4))
    train, val = hold_out_together(parts, 0.75, np.random.default_rng(1), labels)
    assert len(train.indices) + len(val.indices) == 240
    assert not {*train.indices.tolist()} & {*val.indices.tolist()}
    held = class_counts(parts, labels, 3) > 0
    assert ((class_counts(train, labels, 3) > 0) == held).all()


def test_where_every_class_is_left_a_share_of_all_is_held_out():
    labels = np.repeat([0, 1], 10)
    parts = parts_of(np.tile(np.arange(20), 2), np.array([20, 20]))
    _, val = hold_out_together(parts, 0.3, np.random.default_rng(1), labels)
    assert [len(val.of(k)) for k in range(2)] == [6, 6]
