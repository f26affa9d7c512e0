"""The pages of methods tell the defaults as they are, and have every key of the methods that they compose."""

import re
from pathlib import Path

import pytest
import yaml
from presets import composed

from fedfeat.config.choices import CONFIGS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "methods.md", DOCS / "networks.md", *sorted((DOCS / "methods").glob("*.md"))]
PAGE = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
CODE = re.compile(r"`([^`]+)`")
SETTING = re.compile(r"((?:\w+\.)+\w+)=(\S*)")
OPTION = re.compile(
    r"(?<![\w.])(algorithm|arm|diagnostics|experiment|model|partition|pool|scenario|structure)=([\w/]*)"
)
NAMED = re.compile(r"^algorithm:\n  name: (\w+)$", re.M)
GROUPS = ("structure", "diagnostics")


def stated() -> dict[str, list[tuple[str, str]]]:
    """Key and default by composition: in the second column of tables, and where a paragraph begins with them."""
    found: dict[str, list[tuple[str, str]]] = {}
    run, several = "", True
    for line in PAGE.splitlines():
        # Sections of a method's page are about one composition; the other pages are of many.
        several = (several and not line.startswith("# ")) or line in ("# Methods", "# Networks")
        if line.startswith("# ") or (several and line.startswith("## ")):
            run = ""
        if line.startswith("Run: "):
            run = CODE.findall(line)[0].removeprefix("uv run fedfeat ")
        first = [line.split("|")[2]] if line.startswith("| ") else re.findall(r"^`[^`]+`", line)
        settings = [
            match for part in first for code in CODE.findall(part) if (match := SETTING.fullmatch(code))
        ]
        found.setdefault(run, []).extend((match[1], match[2]) for match in settings)
    return found


def at(config: dict, key: str) -> object:
    node: object = config
    for part in key.split("."):
        assert isinstance(node, dict), key
        assert part in node, key
        node = node[part]
    return node


def leaves(node: object) -> set[str]:
    """Names of the values in a part of a configuration, but Hydra's own."""
    if not isinstance(node, dict):
        return set()
    deeper = set().union(*(leaves(child) for child in node.values()))
    return deeper | {key for key, child in node.items() if not isinstance(child, dict) and key[0] != "_"}


@pytest.mark.parametrize("run", [run for run, settings in stated().items() if run and settings])
def test_defaults_are_those_of_the_composition(run):
    config = composed(*run.split())
    wrong = {key: at(config, key) for key, text in stated()[run] if at(config, key) != yaml.safe_load(text)}
    assert wrong == {}


def test_every_default_belongs_to_a_composition():
    assert stated().get("", []) == []
    assert sum(map(len, stated().values())) > 60


@pytest.mark.parametrize("run", [run for run in stated() if run.startswith("algorithm=")])
def test_every_key_of_a_method_is_on_the_page(run):
    config = composed(*run.split())
    keys = leaves(config["algorithm"]["client"]) | leaves(config["algorithm"]["server"])
    keys |= set().union(*(leaves(config[group]) for group in GROUPS if group in config))
    words = {word for code in CODE.findall(PAGE) for word in re.findall(r"\w+", code)}
    assert sorted(keys - words) == []


def named() -> set[str]:
    """Files of configs that the page names: `group=option`, and rows of a table whose first column is `group=`."""
    found, start = set(), ""
    for line in PAGE.splitlines():
        found |= {"/".join(option) for code in CODE.findall(line) for option in OPTION.findall(code)}
        column = line.split("|")[1] if line.startswith("|") else ""
        if not column:
            start = ""
        elif header := OPTION.fullmatch(column.strip(" `")):
            start = "/".join(header.groups())
        elif start:
            found |= {start + name for name in CODE.findall(column)}
    return {name for name in found if not name.endswith("/")}


def test_options_that_the_page_names_exist():
    names = named()
    assert {"algorithm/fed2_unpaired", "model/vgg9", "experiment/fedfusion/ff_d"} <= names
    assert {name for name in names if not (CONFIGS / f"{name}.yaml").is_file()} == set()


def test_every_algorithm_has_its_results_on_one_page():
    """An arm that names its run itself stands beside the algorithm that it is made of."""
    made = [name for group in re.findall(r"made: method algorithms=(\S+)", PAGE) for name in group.split(",")]
    algorithms = {path.stem for path in (CONFIGS / "algorithm").glob("*.yaml")}
    named = {name for path in (CONFIGS / "arm").glob("*.yaml") for name in NAMED.findall(path.read_text())}
    assert len(made) == len({*made})
    assert algorithms <= {*made} <= algorithms | named
