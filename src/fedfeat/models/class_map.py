"""Which group of a group-separated network learns which classes."""

from collections.abc import Sequence
from typing import Annotated, Any

from fedfeat.config.conditions import Condition, any_of, list_of, one_of
from fedfeat.errors import ConfigError
from fedfeat.models.grouped_layers import ClassSets
from fedfeat.seeding import numpy_generator

# The 20 superclasses of CIFAR-100 (Krizhevsky 2009, page 36).
CIFAR100_SUPERCLASSES = {
    "aquatic mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food containers": "bottle bowl can cup plate",
    "fruit and vegetables": "apple mushroom orange pear sweet_pepper",
    "household electrical devices": "clock keyboard lamp telephone television",
    "household furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large carnivores": "bear leopard lion tiger wolf",
    "large man-made outdoor things": "bridge castle house road skyscraper",
    "large natural outdoor scenes": "cloud forest mountain plain sea",
    "large omnivores and herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammals": "fox porcupine possum raccoon skunk",
    "non-insect invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles 1": "bicycle bus motorcycle pickup_truck train",
    "vehicles 2": "lawn_mower rocket streetcar tank tractor",
}

MAPS = ("contiguous", "strided", "random", "superclass")
_LISTS = list_of(Condition(lambda value: isinstance(value, list), "be a list", {"type": "array"}))
_MAP = any_of(one_of(*MAPS), _LISTS, text=f"be one of {', '.join(MAPS)}, or lists")
ClassMap = Annotated[str | Sequence[Sequence[int]], _MAP]


def class_sets(
    class_map: ClassMap, groups: int | None, num_classes: int, class_names: Sequence[str] = (), seed: int = 0
) -> ClassSets:
    """Give the classes of each group; the sets are disjoint and together all classes.

    Args:
        class_map: ``contiguous``: class c in group floor(c * G / C). ``strided``: in c mod G. ``random``: contiguous
            after a seeded shuffle. ``superclass``: CIFAR-100's 20. Or a list of lists of classes.
        groups: G; None is one group per class (per superclass, per list).
        num_classes: C.
        class_names: Names of the classes, for ``superclass``.
        seed: The experiment's seed, for ``random``.

    Raises:
        ConfigError: More groups than classes, or lists that miss, repeat or invent a class.
    """
    if not isinstance(class_map, str):
        return _explicit(class_map, groups, num_classes)
    if class_map == "superclass":
        return _superclasses(groups, class_names)
    count = num_classes if groups is None else groups
    if not 1 <= count <= num_classes:
        raise ConfigError.rule("structure.groups", f"be between 1 and the {num_classes} classes", count)
    order = list(range(num_classes))
    if class_map == "random":
        order = numpy_generator(seed, "class map").permutation(num_classes).tolist()
    owner = [c % count if class_map == "strided" else c * count // num_classes for c in range(num_classes)]
    return tuple(
        tuple(sorted(c for c, found in zip(order, owner, strict=True) if found == g)) for g in range(count)
    )


def _explicit(lists: Sequence[Sequence[int]], groups: int | None, num_classes: int) -> ClassSets:
    held = [c for classes in lists for c in classes]
    if set(map(type, held)) != {int} or sorted(held) != list(range(num_classes)) or not all(lists):
        rule = f"hold each of the {num_classes} classes once and no empty list"
        raise ConfigError.rule("structure.class_map", rule, lists)
    sets = tuple(tuple(sorted(classes)) for classes in lists)
    if groups is not None and groups != len(sets):
        raise ConfigError.rule("structure.groups", f"be the {len(sets)} lists of structure.class_map", groups)
    return sets


def _superclasses(groups: int | None, class_names: Sequence[str]) -> ClassSets:
    place: dict[str, Any] = {name.replace(" ", "_"): c for c, name in enumerate(class_names)}
    sets = tuple(
        tuple(sorted(place[name] for name in names.split() if name in place))
        for names in CIFAR100_SUPERCLASSES.values()
    )
    if sum(map(len, sets)) != len(class_names) or len(class_names) != 100:
        raise ConfigError.rule(
            "structure.class_map", "be superclass with the 100 class names of CIFAR-100 only", "superclass"
        )
    if groups not in (None, len(sets)):
        raise ConfigError.rule("structure.groups", "be 20 with structure.class_map=superclass", groups)
    return sets


def kept_sets(sets: ClassSets, counts: Sequence[int]) -> ClassSets:
    """Give the groups that hold at least one class of a client (Psi-Net Eq. 6).

    Args:
        sets: The classes of each group.
        counts: The client's training examples per class (C,).
    """
    return tuple(classes for classes in sets if any(counts[c] for c in classes))
