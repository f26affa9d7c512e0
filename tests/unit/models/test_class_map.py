import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.config.arguments import check_targets
from fedfeat.errors import ConfigError
from fedfeat.models.class_map import CIFAR100_SUPERCLASSES, class_sets, kept_sets

NAMES = tuple(sorted(name for names in CIFAR100_SUPERCLASSES.values() for name in names.split()))


def test_contiguous_sets_are_floors():
    """floor(c * 3 / 10) = 0 0 0 0 1 1 1 2 2 2."""
    assert class_sets("contiguous", 3, 10) == ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))


def test_strided_sets_are_remainders():
    assert class_sets("strided", 3, 8) == ((0, 3, 6), (1, 4, 7), (2, 5))


@pytest.mark.parametrize("class_map", ["contiguous", "strided"])
def test_a_group_per_class_is_the_default(class_map):
    assert class_sets(class_map, None, 4) == ((0,), (1,), (2,), (3,))


def test_random_sets_follow_the_seed():
    found = [class_sets("random", 10, 100, seed=seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert {len(classes) for classes in found[0]} == {10}
    assert found[0] != class_sets("contiguous", 10, 100)


def test_lists_are_taken_as_they_are_with_their_classes_in_order():
    assert class_sets([[3, 0], [1], [2, 4]], None, 5) == ((0, 3), (1,), (2, 4))


def test_superclasses_are_the_20_of_cifar100():
    assert len(set(NAMES)) == 100
    sets = class_sets("superclass", None, 100, NAMES)
    assert len(sets) == 20
    # 14th of Krizhevsky's list: "people".
    assert {NAMES[c] for c in sets[14]} == {"baby", "boy", "girl", "man", "woman"}
    assert sets == class_sets("superclass", 20, 100, NAMES)
    spaced = tuple(name.replace("_", " ") for name in NAMES)
    assert class_sets("superclass", None, 100, spaced) == sets


@given(st.data(), st.sampled_from(["contiguous", "strided", "random"]), st.integers(1, 40))
def test_every_class_has_one_group_and_every_group_a_class(data, class_map, num_classes):
    groups = data.draw(st.integers(1, num_classes))
    sets = class_sets(class_map, groups, num_classes, seed=data.draw(st.integers(0, 9)))
    assert len(sets) == groups
    assert sorted(c for classes in sets for c in classes) == list(range(num_classes))
    sizes = {len(classes) for classes in sets}
    assert sizes <= {num_classes // groups, -(-num_classes // groups)}


def test_kept_are_the_groups_that_hold_a_class_of_the_client():
    sets = ((0, 3), (1,), (2, 4))
    assert kept_sets(sets, [0, 0, 7, 1, 0]) == ((0, 3), (2, 4))
    assert kept_sets(sets, [0, 2, 0, 0, 0]) == ((1,),)
    assert kept_sets(sets, [1, 1, 1, 1, 1]) == sets


LISTS = r"structure\.class_map must hold each of the 5 classes once and no empty list, but it is "
KINDS = r"structure\.class_map must be one of contiguous, strided, random, superclass, or lists, but it is "


@pytest.mark.parametrize(
    ("class_map", "groups", "sentence"),
    [
        ([[0, 1], [2, 3]], None, LISTS + r"\[\[0, 1\], \[2, 3\]\]\.$"),
        ([[0, 1], [1, 2, 3, 4]], None, LISTS),
        ([[0, 1, 2, 3, 4, 5]], None, LISTS),
        ([[0, 1, 2, 3, 4], []], None, LISTS),
        ([], None, LISTS + r"\[\]\.$"),
        ([[0, 1], [2, 3, "4"]], None, LISTS),
        ([[0, 1], [2, 3, 4.0]], None, LISTS),
        ([[False, True], [2, 3, 4]], None, LISTS),
        (
            [[0, 1], [2, 3, 4]],
            3,
            r"structure\.groups must be the 2 lists of structure\.class_map, but it is 3\.$",
        ),
        ("contiguous", 6, r"structure\.groups must be between 1 and the 5 classes, but it is 6\.$"),
        ("random", 0, r"structure\.groups must be between 1 and the 5 classes, but it is 0\.$"),
        (
            "superclass",
            None,
            r"structure\.class_map must be superclass with the 100 class names of CIFAR-100 o",
        ),
    ],
)
def test_what_is_no_map_is_refused(class_map, groups, sentence):
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        class_sets(class_map, groups, 5, tuple("abcde"))


@pytest.mark.parametrize("class_map", [[0, 1, 2, 3, 4], 3, None, "sorted"])
def test_what_is_neither_name_nor_lists_is_refused(class_map):
    with pytest.raises(ConfigError, match=f"^{KINDS}{re.escape(repr(class_map))}\\.$"):
        check_targets(
            {"structure": {"_target_": "fedfeat.models.grouped.GroupSeparation", "class_map": class_map}}
        )


def test_superclasses_have_20_groups():
    with pytest.raises(
        ConfigError, match=r"^structure\.groups must be 20 with .*superclass, but it is 10\.$"
    ):
        class_sets("superclass", 10, 100, NAMES)
