"""Rules that parts have in their constructors, tried on every option of a group that has the key."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rule_rows import ACCEPTED_BY_PARTS, REFUSED_BY_PARTS

from fedfeat.config.arguments import check_targets
from fedfeat.config.choices import CONFIGS
from fedfeat.errors import ConfigError

# Parts that stand in another one's place: their group is not the key's.
ELSEWHERE = {"algorithm.server.average": "algorithm/server"}


def group_of(key: str) -> tuple[str, Path]:
    """Split a key after its group, and give the folder of that group's options."""
    parts = key.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]
    folders = ((prefix, CONFIGS / ELSEWHERE.get(prefix, prefix.replace(".", "/"))) for prefix in prefixes)
    return next((prefix, folder) for prefix, folder in folders if folder.is_dir())


def plain(node: Any) -> Any:
    """Leave out what Hydra composes or resolves."""
    if not isinstance(node, dict):
        return node
    own = {key: value for key, value in node.items() if key != "defaults"}
    return {key: plain(value) for key, value in own.items() if not str(value).startswith("${")}


def owners(key: str, value: Any) -> list[dict[str, Any]]:
    """Give a configuration for every option that has the key in a section with a target, with the value."""
    prefix, folder = group_of(key)
    *inner, last = key.removeprefix(f"{prefix}.").split(".")
    found = []
    for path in sorted(folder.glob("*.yaml")):
        config = yaml.safe_load(path.read_text()) or {}
        section = config
        for part in inner:
            section = section.get(part, {})
        if last in section and "_target_" in section:
            section[last] = value
            config = plain(config)
            for part in reversed(prefix.split(".")):
                config = {part: config}
            found.append(config)
    return found


@pytest.mark.parametrize(("key", "value", "text"), REFUSED_BY_PARTS)
def test_every_part_that_has_a_key_refuses_its_broken_rule(key, value, text):
    pytest.importorskip("ray") if key.startswith("executor.") else None
    configs = owners(key, value)
    assert configs
    ending = ".*, but it is " + re.escape(repr(value)) + r"\.$"
    for config in configs:
        with pytest.raises(ConfigError, match="^" + re.escape(f"{key} must be {text}") + ending):
            check_targets(config)


@pytest.mark.parametrize(("key", "value"), ACCEPTED_BY_PARTS)
def test_a_good_value_passes(key, value):
    pytest.importorskip("ray") if key.startswith("executor.") else None
    configs = owners(key, value)
    assert configs
    for config in configs:
        check_targets(config)
