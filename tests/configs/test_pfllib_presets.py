"""Presets of PFLlib's leaderboard: settings, published numbers, and what clients are tested on."""

import numpy as np
import pytest
from hydra.utils import instantiate
from presets import axes, composed, files

from fedfeat.config.rules import check
from fedfeat.runs.finished import published_numbers

PRESETS = {name: path for name, path in files("experiment", "pfllib").items() if name != "base"}
ARMS = (
    "fedavg",
    "fedprox",
    "per_fedavg",
    "pfedme",
    "ditto",
    "apfl",
    "fedala",
    "fedper",
    "fedrep_one",
    "fedrod",
    "fedbabu",
    "fd",
    "fedproto",
)
# Per cent, as docs/benchmark.html of TsingZ0/PFLlib has them, in the order of the arms.
TABLE = {
    "fmnist_pathological": (
        80.41,
        78.08,
        99.18,
        99.35,
        99.44,
        99.41,
        99.57,
        99.47,
        99.56,
        99.52,
        99.41,
        99.51,
        99.49,
    ),
    "c100_pathological": (
        25.98,
        25.94,
        56.80,
        58.20,
        67.23,
        64.26,
        67.83,
        63.53,
        67.56,
        62.30,
        66.85,
        66.78,
        69.18,
    ),
    "fmnist_dir01": (
        85.85,
        85.63,
        95.10,
        97.25,
        97.47,
        97.25,
        97.66,
        97.44,
        97.56,
        97.52,
        97.46,
        97.43,
        97.40,
    ),
    "c100_dir01": (31.89, 31.99, 44.28, 47.34, 52.87, 46.74, 55.92, 49.63, 52.39, 50.94, 55.02, 49.93, 52.70),
}


def whose(arm):
    """The quantity that a number is of: the server's model, the clients' own, or those after fine-tuning."""
    if arm in ("fedavg", "fedprox"):
        return "last10/global/acc"
    return "final_all/acc_weighted" if arm == "fedbabu" else "last10/personal/acc_weighted"


@pytest.mark.parametrize("name", TABLE)
def test_a_column_of_the_leaderboard(name):
    assert set(PRESETS) == set(TABLE)
    assert axes(PRESETS[name]) == {"arm": ["local", *ARMS], "seed": ["0", "1", "2"]}
    assert f"# fedfeat --multirun experiment=pfllib/{name}\n" in PRESETS[name].read_text()
    for arm, percent in zip(ARMS, TABLE[name], strict=True):
        config = composed(f"experiment=pfllib/{name}", f"arm={arm}")
        check(config)
        assert (config["group"], config["name"]) == (f"pfllib/{name}", f"{name}-{arm}")
        assert published_numbers(config) == {whose(arm): pytest.approx(percent / 100)}
        federation = config["federation"]
        work = ("num_clients", "fraction", "num_rounds", "local_epochs", "batch_size", "final_epochs")
        epochs, tuning = 2 if arm == "fedrep_one" else 1, 10 if arm == "fedbabu" else None
        assert tuple(federation[key] for key in work) == (20, None, 2000, epochs, 10, tuning)
        optimizer = config["optimizer"]
        assert (optimizer["lr"], optimizer["momentum"], optimizer["weight_decay"]) == (0.005, 0.0, 0.0)
        assert (config["model"]["widths"], config["model"]["hidden"]) == ([32, 64], [512])
        assert config["data"]["transform"] == {"_target_": "fedfeat.data.transforms.pfllib"}
        mini = composed(f"experiment=pfllib/{name}", f"arm={arm}", "scale=mini")
        check(mini)
        assert mini["federation"]["local_epochs"] == epochs
        assert published_numbers(mini) == {}
    assert published_numbers(composed(f"experiment=pfllib/{name}", "arm=local")) == {}


def test_arms_of_personal_layers():
    fedper, fedrep = (composed(f"arm={arm}")["algorithm"]["client"] for arm in ("fedper", "fedrep_one"))
    assert fedper["personal"] == fedrep["personal"] == ["last"]
    assert fedrep["head_epochs"] == 1


@pytest.mark.parametrize("name", TABLE)
def test_who_holds_what_is_that_of_the_benchmark(name):
    """20 clients hold all of both sets, of which a quarter tests each one."""
    config = composed(f"experiment=pfllib/{name}")
    assert config["data"]["name"] == ("fashion_mnist" if name.startswith("fmnist") else "cifar100")
    num_classes = 10 if name.startswith("fmnist") else 100
    labels = np.arange(6000) % num_classes
    scheme = instantiate(config["partition"])
    split = scheme.split(labels, labels[:1000], num_classes, 20, 0)
    sizes = np.diff(split.train.offsets) + split.test.sizes()
    assert sizes.sum() == 7000
    assert (split.test.sizes() == sizes // 4).all()
    both = np.concatenate([labels, labels[:1000]])
    held = [len(np.unique(both[split.train.of(k)])) for k in range(20)]
    if name.endswith("pathological"):
        assert max(held) == num_classes // (5 if num_classes == 10 else 10)
    else:
        assert config["partition"]["inner"]["min_size"] == 40 <= sizes.min()
        assert config["partition"]["inner"]["cap"]
