"""JSON schemas of configs/: files are as made anew, and judge as a run does; every YAML passes, mistakes do not."""

import fnmatch
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from schema_files import Schemas, content

from fedfeat.commands.schemas import settings
from fedfeat.config.arguments import check_targets
from fedfeat.config.choices import CONFIGS
from fedfeat.config.rule_table import RULES
from fedfeat.config.rules import check
from fedfeat.config.schemas.files import TREE, documents, schema_of
from fedfeat.errors import ConfigError

ROOT = CONFIGS.parent
FOLDER = CONFIGS / ".schemas"
FILES = {path.relative_to(CONFIGS).as_posix(): path for path in sorted(CONFIGS.rglob("*.yaml"))}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 0.5, 1.5, -0.5, "", "text", "auto", "none", "all"),
    *([], [1], [0], [-1], ["a"], [""], [0.5], [1, 2, 3], [[1]], [[0, 1], [2]]),
    *({}, {"a": 1}, {"a": 0.5}, {"a": "b"}, {"a": -1}, {"a": [1]}),
]
"""No whole number as a float, which is an integer to JSON."""
LOOSER = {"arch"}
"""torchvision's names begin as the schema says, and the schema does not list them."""


@pytest.fixture(scope="module")
def schemas():
    return Schemas({path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")})


def test_the_files_are_as_made_anew():
    """Else: make schemas."""
    made = documents([CONFIGS])
    assert sorted(made) == sorted(path.name for path in FOLDER.iterdir())
    assert [name for name, text in made.items() if (FOLDER / name).read_text(encoding="utf-8") != text] == []


def test_the_files_are_small_and_schemas(schemas):
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 900_000
    for name in schemas.files:
        schemas.validator(name).check_schema(schemas.files[name])


def test_every_file_of_configs_has_its_schema_in_the_settings_and_no_other(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / ".vscode" / "settings.json").read_text(encoding="utf-8")
    assert settings(FOLDER.relative_to(ROOT), [CONFIGS]) == text
    named = json.loads(text)["yaml.schemas"]
    for way, path in FILES.items():
        mine = [Path(schema).name for schema, globs in named.items() if any(_fits(way, one) for one in globs)]
        assert mine == [schema_of(way, path.read_text(encoding="utf-8"))], way


def _fits(way: str, pattern: str) -> bool:
    """Whether a glob is of a file, where `*` stays in a folder."""
    folder, _, name = pattern.removeprefix("configs/").rpartition("/")
    if folder.endswith("/**"):
        return way.startswith(folder.removesuffix("**")) and fnmatch.fnmatch(way, f"*{name}")
    return fnmatch.fnmatch(way, f"{folder}/{name}".lstrip("/")) and way.rpartition("/")[0] == folder


@pytest.mark.parametrize("way", FILES)
def test_every_file_of_configs_passes(schemas, way):
    path = FILES[way]
    assert schemas.refusals(schema_of(way, path.read_text(encoding="utf-8")), content(path)) == []


def accepted(judge: Any, *given: Any) -> bool:
    try:
        judge(*given)
    except ConfigError:
        return False
    return True


def test_schemas_and_check_targets_judge_every_argument_of_every_target_alike(schemas):
    targets = {name: one for name, one in schemas.shared.items() if "." in name and "_target_" in _keys(one)}
    targets = {name: one for name, one in targets.items() if _keys(one)["_target_"] and "/" not in name}
    targets = {
        name: one for name, one in targets.items() if accepted(check_targets, {"a": {"_target_": name}})
    }
    assert len(targets) > 100
    tried, apart = 0, []
    for target, schema in targets.items():
        judge = schemas.validator("shared.json", f"/definitions/{target}")
        for name in {*_keys(schema)} - {
            "defaults",
            "_target_",
            "_partial_",
            "_recursive_",
            "_convert_",
            "_args_",
        }:
            for value in [*VALUES, *_listed(schemas, _keys(schema)[name])]:
                section = {"_target_": target, name: value}
                tried += 1
                if judge.is_valid(section) != accepted(check_targets, {"a": section}) and name not in LOOSER:
                    apart.append((target, name, value))
        assert not judge.is_valid({"_target_": target, "no_such": 1}) or schema["additionalProperties"]
    assert apart == []
    assert tried > 15_000


def _keys(schema: Any) -> dict[str, Any]:
    return schema.get("properties", {}) if isinstance(schema, dict) else {}


def _listed(schemas: Schemas, schema: dict[str, Any]) -> list[Any]:
    """Give the values that a schema lists."""
    if "/properties/" in schema.get("$ref", ""):
        target, _, name = schema["$ref"].removeprefix("#/definitions/").partition("/properties/")
        schema = _keys(schemas.shared[target])[name]
    return [value for one in schema.get("anyOf", ()) for value in one.get("enum", ())]


def test_schemas_and_rules_judge_every_key_of_the_table_alike(schemas):
    judge = schemas.validator(TREE)
    for rule in RULES:
        for value in [*VALUES, *rule.test.schema.get("enum", ())]:
            config: dict[str, Any] = {}
            node = config
            *way, last = rule.key.split(".")
            for part in way:
                node = node.setdefault(part, {})
            node[last] = value
            # Alone, for the table has rules between keys as well.
            taken = (value is None and rule.optional) or rule.test.holds(value)
            if rule.key in ("optimizer.momentum", "trainer.limit_train_batches"):
                taken = taken and accepted(check, config)
            assert judge.is_valid(config) == taken, (rule.key, value)


def _mistyped(node: dict[str, Any], way: tuple[str, ...] = ()) -> list[tuple[dict[str, Any], str]]:
    """Give copies of a content in which one key each, at the top or below, has a letter too many."""
    found = []
    for key, value in node.items():
        if (
            way[:1] in (("published",), ("arms",))
            or str(key) in ("arms", "published")
            or way[:1] == ("hydra",)
        ):
            continue
        copy = {(f"{one}x" if one == key else one): deepcopy(other) for one, other in node.items()}
        if not str(key).startswith("_"):
            found.append((copy, f"{key}x"))
        if isinstance(value, dict) and "_target_" not in value:
            found += [({**node, key: inner}, name) for inner, name in _mistyped(value, (*way, str(key)))]
    return found


FREE = ("callbacks", "tune", "logger", "pool", "executor", "hydra", "arm", "data.loader.columns")
"""What takes names that nobody can know: of loggers, of networks, of keys that are searched, of other packages."""


def test_a_mistyped_key_in_any_file_is_refused_by_its_name(schemas):
    tried = 0
    for way, path in FILES.items():
        node, text = content(path), path.read_text(encoding="utf-8")
        if not isinstance(node, dict) or way.partition("/")[0] in FREE:
            continue
        for copy, name in _mistyped(node):
            refusals = schemas.refusals(schema_of(way, text), copy)
            assert any(name in one for one in refusals), (way, name)
            tried += 1
    assert tried > 1400


WRONG = [
    ("algorithm/client/fedprox.yaml", {"mu": -1}, "mu"),
    ("algorithm/client/fedprox.yaml", {"mu": "much"}, "mu"),
    ("algorithm/client/fedprox.yaml", {"_target_": "fedfeat.algorithms.fedprx.FedProxClient"}, "_target_"),
    ("algorithm/client/fedprox.yaml", {"tau": 0.5}, "tau"),  # of MOON
    ("algorithm/client/lg_fedavg.yaml", {"personal": [3]}, "personal"),  # whose target is in its defaults
    ("algorithm/client/fednova_fedprox.yaml", {"halves": 3}, "halves"),
    ("algorithm/client/fednova_fedprox.yaml", {"mu": -1}, "mu"),
    ("algorithm/client/fednova_fedprox.yaml", {"mew": 1}, "mew"),
    ("algorithm/server/pfnm.yaml", {"matching": {"gamma": -1}}, "gamma"),
    ("algorithm/server/fedadam.yaml", {"average": {"weighting": "heavy"}}, "weighting"),
    ("algorithm/fedprox.yaml", {"defaults": [{"override client": "fedprx"}]}, "defaults"),
    (
        "data/cifar10.yaml",
        {"loader": {"_target_": "fedfeat.data.torchvision_sets.named", "num_train": 0}},
        "num_train",
    ),
    ("data/cifar10.yaml", {"loader": "cifar10"}, "loader"),
    ("federation/default.yaml", {"opt_state": "kept"}, "opt_state"),
    ("logger/tensorboard.yaml", {"tensorboards": {"name": ""}}, "tensorboards"),
    ("logger/wandb.yaml", {"wandb": {"mode": "off"}}, "mode"),
    ("model/vgg9.yaml", {"norm": "batch"}, "norm"),
    ("model/vgg9.yaml", {"freeze": "body"}, "freeze"),
    ("optimizer/adam.yaml", {"lr": 0}, "lr"),
    ("partition/permuted.yaml", {"inner": {"val_fraction": 2}}, "val_fraction"),
    ("pool/small4.yaml", {"models": {"a": {"_target_": "fedfeat.models.mlp.mlp", "hiden": [1]}}}, "hiden"),
    ("trainer/gpu.yaml", {"precision": 8}, "precision"),
    ("trainer/gpu.yaml", {"max_epochs": 3}, "False schema"),
    ("trainer/gpu.yaml", {"devices": []}, "devices"),
    ("experiment/mnist_iid.yaml", {"model": "vgg9"}, "model"),
    ("experiment/mnist_iid.yaml", {"model": {"_target_": "fedfeat.models.vgg.vgg9", "nrm": "bn"}}, "nrm"),
    ("experiment/mnist_iid.yaml", {"public": {"loader": {"num_train": "all"}}}, "num_train"),
    ("experiment/mnist_iid.yaml", {"defaults": [{"override /model": "vgg99"}]}, "defaults"),
    ("experiment/mnist_iid.yaml", {"defaults": [{"override /modl": "vgg9"}]}, "defaults"),
    ("experiment/mnist_iid.yaml", {"defaults": ["/experiment/fed2/bas"]}, "defaults"),
    ("experiment/mnist_iid.yaml", {"hydra": {"sweeper": {"params": {"algoritm": "fed2"}}}}, "algoritm"),
    ("experiment/mnist_iid.yaml", {"hydra": {"swep": {"dir": "a"}}}, "swep"),
    ("experiment/mnist_iid.yaml", {"seed": -1}, "seed"),
    ("experiment/mnist_iid.yaml", {"model": {"defaults": ["vgg9"]}}, "False schema"),
]


@pytest.mark.parametrize(("way", "change", "key"), WRONG)
def test_a_wrong_value_is_refused_by_its_key(schemas, way, change, key):
    path = FILES[way]
    name = schema_of(way, path.read_text(encoding="utf-8"))
    refusals = schemas.refusals(name, (content(path) or {}) | change)
    assert refusals
    assert any(key in one for one in refusals), refusals


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("algorithm/client/mine.yaml", "_target_: calm.method.CalmClient\nanything: [1]\n"),
        ("algorithm/client/mine.yaml", "defaults: [fedprox]\nmu: ${arms.mu}\n"),
        ("algorithm/client/mine.yaml", "defaults: [fedprox]\nmu: ???\npersonal: [head, '${arms.more}']\n"),
        (
            "model/mine.yaml",
            "_target_: torchvision.models.resnet18\n_partial_: true\nweights: null\nfreeze: [body]\n",
        ),
        ("optimizer/mine.yaml", "_target_: torch.optim.RMSprop\nalpha: 0.9\n"),
        ("federation/mine.yaml", "cohort_size: {_target_: my.size}\n"),
        ("logger/mine.yaml", "mine: {_target_: my.Logger, port: 1}\n"),
        ("trainer/mine.yaml", "defaults: [gpu]\nprofiler: {_target_: my.Profiler}\n"),
        ("paths/mine.yaml", ""),
    ],
)
def test_what_is_of_others_or_stands_for_a_value_passes(schemas, way, text):
    assert schemas.refusals(schema_of(way, text), yaml.safe_load(text)) == []


def test_descriptions_come_from_docstrings_comments_and_rules(schemas):
    prox = _keys(schemas.shared["fedfeat.algorithms.fedprox.FedProxClient"])["mu"]
    assert prox["description"].endswith("Must be in [0, inf).")
    assert prox["default"] == 0.001
    federation = _keys(schemas.shared["federation"])
    assert federation["batch_size"]["description"].startswith("Null: the whole client as one batch.")
    assert "Must be one of reset, keep." in federation["opt_state"]["description"]
    assert _keys(schemas.shared["file:tree"])["structure"]["description"].startswith("A transform of it")
