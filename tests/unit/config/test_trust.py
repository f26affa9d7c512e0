"""What the configuration of a run directory may name; whatever it is refused for, nothing of it has been imported."""

import sys

import pytest
import yaml

from fedfeat.config import search_path
from fedfeat.config.trust import check_stored, targets
from fedfeat.errors import ConfigError

SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}
JOINED = "fedfeat.client.joined"

REFUSED = {
    "torch.load": {"_target_": "torch.load", "f": "x.pt", "weights_only": False},
    "numpy.load": {"_target_": "numpy.load", "file": "x.npy", "allow_pickle": True},
    "os.system": {"_target_": "os.system", "command": "true"},
    "builtins.eval": {"_target_": "builtins.eval", "_args_": ["1"]},
    "importlib.import_module": {"_target_": "importlib.import_module", "name": "antigravity"},
    "fedfeat.files.os.system": {"_target_": "fedfeat.files.os.system", "command": "true"},
    "fedfeat.files.atomic_write_text": {"_target_": "fedfeat.files.atomic_write_text", "path": "x", "text": "y"},
    "fedfeat.client.torch.load": {"_target_": "fedfeat.client.torch.load", "f": "x.pt"},
    "fedfeat.client.ClientModule.load_from_checkpoint": {
        "_target_": "fedfeat.client.ClientModule.load_from_checkpoint"
    },
    "torch.optim.sgd.torch.load": {"_target_": "torch.optim.sgd.torch.load", "f": "x.pt"},
    "torch.optim.Optimizer.__subclasses__": {"_target_": "torch.optim.Optimizer.__subclasses__"},
    "torch.optim.swa_utils.AveragedModel": {"_target_": "torch.optim.swa_utils.AveragedModel"},
    "pytorch_lightning.callbacks.ModelCheckpoint": {"_target_": "pytorch_lightning.callbacks.ModelCheckpoint"},
    "pytorch_lightning.loggers.CometLogger": {"_target_": "pytorch_lightning.loggers.CometLogger"},
    "hydra.utils.get_method": {"_target_": "hydra.utils.get_method", "path": "os.system"},
    "hydra.utils.get_object": {"_target_": "hydra.utils.get_object", "path": "os.system"},
    "hydra.utils.instantiate": {"_target_": "hydra.utils.instantiate", "config": {}},
    "hydra._internal.instantiate._instantiate2.instantiate": {
        "_target_": "hydra._internal.instantiate._instantiate2.instantiate"
    },
    "antigravity.geohash": {"_target_": "antigravity.geohash"},
}  # fmt: skip


def refusal(config, trust=()):
    before = set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        check_stored(config, trust)
    assert "antigravity" not in set(sys.modules) - before
    return str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_part_is_refused_wherever_it_stands(name):
    node = REFUSED[name]
    places = {
        "optimizer._target_": {"optimizer": node},
        "optimizer.lr._target_": {"optimizer": {**SGD, "lr": node}},
        "optimizer._args_.0._target_": {"optimizer": {**SGD, "_args_": [node]}},
        "optimizer._args_.0.1._target_": {"optimizer": {**SGD, "_args_": [[1, node]]}},
        "callbacks.mine.x.y.0._target_": {"callbacks": {"mine": {"x": {"y": [node]}}}},
        "optimizer.a._target_": {"optimizer": {**SGD, "_partial_": True, "a": {**node, "_partial_": True}}},
        "data.public._target_": {"data": {"public": {**node, "_recursive_": False, "_convert_": "object"}}},
    }
    for key, config in places.items():
        text = refusal(config)
        assert text.startswith(f"{key} must name a part of fedfeat, of torch.optim or ")
        assert text.endswith(f"(--trust {name}; from Python trust=['{name}']), but it is '{name}'.")


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": {"_target_": "torch.optim.SGD"}},
        {"_target_": None},
        {"_target_": ["torch.optim.SGD"]},
        {"_target_": "hydra.utils.get_class"},
        {"_target_": "hydra.utils.get_class", "_args_": ["subprocess.Popen"]},
        {"_target_": "hydra.utils.get_class", "path": JOINED, "_args_": ["subprocess.Popen"]},
        {"_target_": "hydra.utils.get_class", "path": {"_target_": JOINED}},
    ],
)
def test_a_target_that_is_no_name_is_refused(node):
    assert "._target_ must be the name of a class" in refusal({"a": [node]}) or "a.0.path must" in refusal(
        {"a": [node]}
    )


def test_so_is_a_class_that_get_class_would_give():
    node = {"_target_": "hydra.utils.get_class", "path": "subprocess.Popen"}
    assert refusal({"a": {"halves": [node]}}).startswith("a.halves.0.path must name a part of fedfeat")


@pytest.mark.parametrize(
    "value", ["${oc.env:HOME}", "x ${oc.decode:'1'}", "${hydra:runtime.cwd}", "${paths.data}", "\\${x}"]
)
def test_nothing_is_resolved(value):
    sentence = f"data.root must be a plain value in a run directory, but it is {value!r}."
    assert refusal({"data": {"root": value}}) == sentence
    assert refusal({"data": [{"_target_": value}]}).startswith("data.0._target_ must be a plain value")


GROUPS = (
    *("model", "structure", "pool", "optimizer", "schedule", "callbacks", "sampler", "diagnostics"),
    *("partition", "algorithm", "data", "trainer", "experiment", "arm"),
)


def test_all_that_our_options_name_is_accepted():
    found = set()
    for group in GROUPS:
        for path in sorted((search_path.CONFIGS / group).rglob("*.yaml")):
            found |= {name for _, name in targets(yaml.safe_load(path.read_text()))}
    check_stored({"group": [{"_target_": name} for name in sorted(found)]})
    assert len(found) > 60
    halves = [{"_target_": "hydra.utils.get_class", "path": "fedfeat.algorithms.fedprox.FedProxClient"}]
    check_stored({"client": {"_target_": JOINED, "halves": halves}})


def test_every_optimizer_of_torch_is_accepted():
    for name in ("torch.optim.RMSprop", "torch.optim.Adagrad", "torch.optim.adam.Adam"):
        check_stored({"optimizer": {"_target_": name}})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make an importable package that has imported others' functions, and a module that says when it is imported."""
    folder = tmp_path / "placid"
    (folder / "options" / "algorithm").mkdir(parents=True)
    (folder / "__init__.py").write_text("from placid.method import Client\n")
    (folder / "method.py").write_text("import os\nfrom os import system\n\n\nclass Client:\n    pass\n")
    (folder / "options" / "__init__.py").write_text("")
    (folder / "options" / "algorithm" / "calm.yaml").write_text(
        "client:\n  _target_: placid.method.Client\nserver:\n"
        "  - _target_: hydra.utils.get_class\n    path: placid.other.Server\n"
        "  - _target_: hydra.utils.get_method\n    path: placid.other.Server.run\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "placid"
    for name in [name for name in sys.modules if name.partition(".")[0] == "placid"]:
        del sys.modules[name]


def test_what_a_trusted_package_lacks_is_said_to_be_missing_and_nothing_is_printed(package, capsys, caplog):
    for name in (f"{package}.method.Clint", f"{package}.gone.Client"):
        assert refusal({"a": {"_target_": name}}, trust=[package]) == (
            f"a._target_ must be a class or function that the trusted {package} defines, and that can be imported "
            f"here, but it is {name!r}."
        )
    assert (*capsys.readouterr(), caplog.text) == ("", "", "")


def test_a_package_that_is_trusted_lends_its_name_to_nothing_else(package):
    for name in ("placid.method.Client", "placid.Client"):
        node = {"a": {"_target_": name}}
        assert refusal(node).startswith("a._target_ must name a part")
        assert package not in sys.modules  # not even imported, before it is trusted
        check_stored(node, trust=[package])
        check_stored(node, trust=[name])
        del sys.modules[package]
    for name in (
        "placid.method.os.system",
        "placid.method.system",
        "placid.method.os",
        "placid.gone",
        "placidus.x",
    ):
        refusal({"a": {"_target_": name}}, trust=[package])
    refusal({"a": {"_target_": "placid.method.Client"}}, trust=["plac", "placid.other"])


@pytest.mark.parametrize("name", ["placidus.run", "placid.method.run"])
def test_a_package_whose_name_only_begins_alike_is_another(package, tmp_path, name):
    """Also where the trusted one has imported from it; by its own name it is not even imported."""
    (tmp_path / "placidus.py").write_text("def run():\n    pass\n")
    with (tmp_path / "placid" / "method.py").open("a") as file:
        file.write("from placidus import run\n")
    rule = (
        "name a part"
        if name == "placidus.run"
        else f"be a class or function that the trusted {package} defines"
    )
    assert refusal({"a": {"_target_": name}}, trust=[package]).startswith(f"a._target_ must {rule}")
    assert ("placidus" in sys.modules) == (name != "placidus.run")
    sys.modules.pop("placidus", None)


def test_an_installed_package_lends_what_its_options_name(package, monkeypatch):
    monkeypatch.setattr(search_path, "installed", lambda: ["placid.options"])
    check_stored({"a": {"_target_": "placid.method.Client"}})
    check_stored({"a": {"_target_": "hydra.utils.get_class", "path": "placid.other.Server"}})
    for name in ("placid.method.os.system", "placid.method.Other"):
        refusal({"a": {"_target_": name}})
    refusal({"a": {"_target_": "hydra.utils.get_method", "path": "os.system"}})
