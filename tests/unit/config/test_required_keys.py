"""Keys that no configuration may lack."""

import re
from pathlib import Path

import pytest

from fedfeat.config.rules import KEYS, REQUIRED, check_complete
from fedfeat.errors import ConfigError


def without(config, key):
    """A copy that lacks a dotted key."""
    first, _, rest = key.partition(".")
    kept = {name: value for name, value in config.items() if name != first}
    return kept | {first: without(config[first], rest)} if rest else kept


@pytest.mark.parametrize("key", REQUIRED)
def test_a_configuration_without_a_required_key_is_refused(key):
    complete: dict = {}
    for name in REQUIRED:
        parent, _, last = name.rpartition(".")
        (complete[parent] if parent else complete)[last] = {}
    check_complete(complete)
    with pytest.raises(ConfigError) as caught:
        check_complete(without(complete, key))
    assert str(caught.value) == f"{key} must be present, but the configuration has no such key."


def test_every_key_that_is_read_by_its_name_is_required():
    commands = Path(__file__).parents[3] / "src/fedfeat/commands"
    text = "".join((commands / name).read_text() for name in ("assembly.py", "parts.py", "networks.py"))
    parts = re.findall(r'\bconfig((?:\["\w+"\])+)', text)
    read = {".".join(re.findall(r"\w+", part)) for part in parts}
    for section in ("federation", "scenario"):
        read |= {f"{section}.{name}" for name in re.findall(rf'\b{section}\["(\w+)"\]', text)}
    read -= {"public.loader"}  # there only where somebody asks for it
    read |= set(re.findall(r"\bcfg\.([\w.]+)\b(?!\()", text))
    assert {"seed", "algorithm.pooled", "federation.batch_size", "scenario.reduced_to", "data.loader"} <= read
    may_lack = set(KEYS) - set(REQUIRED)
    assert {key for key in read if key.partition(".")[0] not in may_lack} <= set(REQUIRED)
