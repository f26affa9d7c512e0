"""What the number of classes rules out, for data sets of which it is known before they are read.

The parts refuse the same of any data set once they have it (`data.partition`, `models.class_map`).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

_CLASSES = {"digits": 10, "mnist": 10, "fashion_mnist": 10, "cifar10": 10, "cifar100": 100, "sent140": 2}
_PARTITIONS = "fedfeat.data.partition.schemes."


def broken_by_classes(config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Go through the broken rules between classes, clients and the keys that share the one among the other."""
    classes = known_classes(config)
    num_clients = (config.get("federation") or {}).get("num_clients")
    partition, structure = (_section(config, name) for name in ("partition", "structure"))
    if type(num_clients) is int and str(partition.get("_target_")).startswith(_PARTITIONS):
        yield from _partition(partition, num_clients, classes)
    groups, lists = structure.get("groups"), structure.get("class_map")
    if classes and isinstance(lists, list) and all(one and isinstance(one, list) for one in lists):
        listed = [label for one in lists for label in one]
        if all(type(label) is int for label in listed) and sorted(listed) != list(range(classes)):
            rule = f"hold each of the {classes} classes once and no empty list"
            yield "structure.class_map", rule, lists
    if classes and type(groups) is int and isinstance(lists, str) and groups > classes:
        yield "structure.groups", f"be between 1 and the {classes} classes", groups


def known_classes(config: Mapping[str, Any]) -> int | None:
    """Give the number of classes of a data set of ours; None where only its files say it."""
    data = _section(config, "data")
    loader = _section(data, "loader")
    if not str(loader.get("_target_")).startswith("fedfeat.data."):
        return None
    count = loader.get("num_classes", _CLASSES.get(str(data.get("name"))))
    return count if type(count) is int and count > 0 else None


def _partition(
    partition: Mapping[str, Any], num_clients: int, classes: int | None
) -> Iterator[tuple[str, str, Any]]:
    held, shards, lists = (
        partition.get(key) for key in ("classes_per_client", "shards_per_client", "classes")
    )
    if classes and type(held) is int and held > 0:
        key = "partition.classes_per_client"
        if held > classes:
            yield key, f"be between 1 and the {classes} classes", held
        if num_clients * held < classes:
            least = math.ceil(classes / num_clients)
            yield key, f"be at least {least} so that {num_clients} clients hold every class", held
    if classes and type(shards) is int and num_clients * shards % classes:
        rule = f"make num_clients * shards_per_client a multiple of the {classes} classes"
        yield "partition.shards_per_client", rule, shards
    if isinstance(lists, list) and len(lists) != num_clients:
        rule = f"equal the number of class lists in partition.classes ({len(lists)})"
        yield "federation.num_clients", rule, num_clients
    for one in lists if isinstance(lists, list) else ():
        known = isinstance(one, list) and all(type(label) is int for label in one)
        if classes and known and not all(0 <= label < classes for label in one):
            yield "partition.classes", f"hold class numbers below {classes}", one
    if "power" in partition and (partition.get("alpha") is None) == (partition["power"] is None):
        rule = "be null exactly when partition.power is given"
        yield "partition.alpha", rule, partition.get("alpha")


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}
