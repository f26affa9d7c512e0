"""A run directory that somebody else has made: data, of which nothing is run however it is opened."""

import os
import pickle
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from refusals import digest

import fedfeat
from fedfeat.commands import inspect_features, joining
from fedfeat.errors import CheckpointError, ConfigError

SERVER = "fedfeat.algorithms.fedavg.FedAvgServer"


class Harm:
    """What creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def nodes(folder):
    """Sections that would run something, by their targets; they leave the file ``harm``."""
    marker = folder / "harm"
    torch.save(Harm(marker), folder / "harm.pt")
    np.save(folder / "harm.npy", np.array([Harm(marker)], dtype=object), allow_pickle=True)
    (folder / "harm.pickle").write_bytes(pickle.dumps(Harm(marker)))
    load = {"_target_": "torch.load", "f": str(folder / "harm.pt"), "weights_only": False}
    system = {"_target_": "os.system", "command": f"touch {marker}"}
    return {
        "torch.load": load,
        "numpy.load": {"_target_": "numpy.load", "file": str(folder / "harm.npy"), "allow_pickle": True},
        "os.system": system,
        "torch.serialization.load": {**load, "_target_": "torch.serialization.load"},
        "fedfeat.files.os.system": {**system, "_target_": "fedfeat.files.os.system"},
        "torch.optim.sgd.torch.load": {**load, "_target_": "torch.optim.sgd.torch.load"},
    }


def chains(node):
    """Put a section where a chain of others would call it."""
    later = {**node, "_partial_": True}
    yield "algorithm.server", node
    yield "algorithm.server", {"_target_": SERVER, "_args_": [node]}
    yield "optimizer", {"_target_": "functools.partial", "_args_": [later], "_partial_": True}
    yield "callbacks", {"one": {"_target_": "pytorch_lightning.callbacks.Timer", "duration": [[later, node]]}}
    yield "schedule", {"_target_": "hydra.utils.call", "config": {"a": node}, "_recursive_": False}


def with_section(run_dir, key, section):
    path = run_dir / "config.yaml"
    config = yaml.safe_load(path.read_text())
    node = config
    *parents, last = key.split(".")
    for parent in parents:
        node = node[parent]
    node[last] = section
    path.write_text(yaml.safe_dump(config))


@pytest.fixture
def commands(console):
    """The commands that open a run; each gives exit code, stdout and stderr."""
    return {
        "fedfeat-features": partial(console, inspect_features.main),
        "new_client": partial(console, joining.main),
    }


@pytest.mark.parametrize("target", ["torch.load", "numpy.load", "os.system"])
def test_the_harm_is_real(target, tmp_path):
    from hydra.utils import get_object

    node = nodes(tmp_path)[target]
    get_object(target)(**{key: value for key, value in node.items() if key != "_target_"}) if target != (
        "os.system"
    ) else os.system(node["command"])
    assert (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "target",
    ["torch.load", "numpy.load", "os.system", "fedfeat.files.os.system", "torch.optim.sgd.torch.load"],
)
def test_no_command_runs_what_a_config_names(finished, commands, target, tmp_path):
    stored = (finished / "config.yaml").read_text()
    for key, section in chains(nodes(tmp_path)[target]):
        (finished / "config.yaml").write_text(stored)
        with_section(finished, key, section)
        before = digest(finished)
        for name, command in commands.items():
            code, out, err = command(finished)
            assert (code, out) == (2, "")
            assert err.startswith(f"{name}: {key}")
            assert err.count("\n") == 1
            assert "in a run directory" in err
        with pytest.raises(ConfigError, match="in a run directory"):
            fedfeat.load(finished)
        assert digest(finished) == before
    assert not (tmp_path / "harm").exists()


def test_what_is_trusted_is_made(finished, tmp_path, monkeypatch):
    """A run with a class of the user's opens once its package is named, and not before."""
    (tmp_path / "placid.py").write_text(
        "from fedfeat.algorithms.fedavg import FedAvgServer\n\n\nclass PlacidServer(FedAvgServer):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with_section(finished, "algorithm.server", {"_target_": "placid.PlacidServer"})
    with pytest.raises(ConfigError, match=r"\(--trust placid\.PlacidServer; from Python trust=\['placid"):
        fedfeat.load(finished)
    for trust in (["placid"], ["placid.PlacidServer"]):
        assert fedfeat.load(finished, trust=trust).model().classes == ("0", "1", "2")


def test_the_option_of_the_commands(finished, commands, tmp_path, monkeypatch):
    (tmp_path / "calmer.py").write_text(
        "from fedfeat.algorithms.fedavg import FedAvgServer\n\n\nclass CalmerServer(FedAvgServer):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with_section(finished, "algorithm.server", {"_target_": "calmer.CalmerServer"})
    assert commands["fedfeat-features"](finished)[0] == 2
    assert commands["fedfeat-features"](finished, "--trust", "other", "--trust", "calmer")[0] == 0
    code, _, err = commands["new_client"](finished, "--trust", "calmer")
    assert (code, err.startswith("new_client: RUN must leave clients out")) == (2, True)


def test_nothing_of_the_environment_is_read(finished, commands, monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    with_section(finished, "data.root", "${oc.env:SECRET}")
    code, out, err = commands["fedfeat-features"](finished)
    assert (code, out) == (2, "")
    assert err == (
        "fedfeat-features: data.root must be a plain value in a run directory, but it is '${oc.env:SECRET}'.\n"
    )


def test_loggers_executor_and_profiler_of_a_run_are_not_made(finished, commands, tmp_path):
    profiler = {"_target_": "pytorch_lightning.profilers.SimpleProfiler", "dirpath": str(tmp_path / "harm")}
    with_section(finished, "trainer.profiler", profiler)
    with_section(finished, "logger", {"mine": {"_target_": "os.system", "command": f"touch {tmp_path}/harm"}})
    with_section(finished, "executor", {"_target_": "os.system", "command": f"touch {tmp_path}/harm"})
    assert commands["fedfeat-features"](finished)[0] == 0
    assert fedfeat.load(finished).config["trainer"]["profiler"] == profiler
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "text",
    ["- 1\n", "a: [\n", "seed: !!python/object/apply:os.system ['true']\n", "a: ${\n", "\xff", "17\n", ""],
)
def test_a_config_that_is_none_is_refused_in_a_sentence(finished, commands, text):
    (finished / "config.yaml").write_text(text, encoding="latin-1")
    for name, command in commands.items():
        code, out, err = command(finished)
        assert (code, out) == (2, "")
        assert err.startswith(f"{name}: ")
        assert err.count("\n") == 1
    with pytest.raises((CheckpointError, ConfigError)):
        fedfeat.load(finished)
