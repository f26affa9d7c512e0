"""Presets of FedOpt, LG-FedAvg and FedBABU, whose settings are public and whose tables are not at hand."""

import pytest
from hydra.utils import instantiate
from presets import axes, composed, files

from fedfeat.commands.starts import Start
from fedfeat.config.rules import check
from fedfeat.models.policy import tensor_policies
from fedfeat.runs.finished import published_numbers

WORK = ("num_clients", "fraction", "num_rounds", "local_epochs", "batch_size")
SEEDS = {"seed": ["0", "1", "2"]}


def work(config):
    return tuple(config["federation"][key] for key in WORK)


# Flower's README of FedAvgM: concentration, learning rate, server momentum; the paper's abstract has two numbers.
AVGM = {
    "c10_alpha_0": (1e-9, 0.0003, 0.99, {"fedavg": 0.301, "fedavgm": 0.769}),
    "c10_alpha_001": (0.01, 0.003, 0.97, {}),
    "c10_alpha_01": (0.1, 0.0003, 0.99, {}),
    "c10_alpha_1": (1.0, 0.0003, 0.997, {}),
    "c10_alpha_10": (10.0, 0.003, 0.9, {}),
}


@pytest.mark.parametrize("name", AVGM)
def test_fedavgm_as_flower_reran_it(name):
    presets = files("experiment", "fedopt")
    assert set(presets) == {*AVGM, "base_c10"}
    assert axes(presets[name]) == {"algorithm": ["fedavg", "fedavgm"]} | SEEDS
    alpha, lr, beta, numbers = AVGM[name]
    for algorithm in ("fedavg", "fedavgm"):
        config = composed(f"experiment=fedopt/{name}", f"algorithm={algorithm}")
        check(config)
        assert work(config) == (100, 0.05, 10000, 1, 64)
        assert config["partition"]["_target_"].endswith(".ClientDirichlet")
        assert config["partition"]["alpha"] == alpha
        assert (config["optimizer"]["lr"], config["optimizer"]["momentum"]) == (lr, 0.0)
        assert config["data"]["transform"] == {"_target_": "fedfeat.data.transforms.unscaled"}
        assert (config["model"]["dropout"], config["model"]["init"]) == (0.0, "xavier")
        expected = {"global/acc": numbers[algorithm]} if numbers else {}
        assert published_numbers(config) == expected
    assert (config["algorithm"]["server"]["beta"], config["algorithm"]["server"]["lr"]) == (beta, 1.0)


def test_elsewhere_the_servers_momentum_is_its_default():
    assert composed("algorithm=fedavgm")["algorithm"]["server"]["beta"] == 0.9


def test_lg_fedavg_as_its_scripts_have_it():
    arms = {"local", "fedavg", "lg_fedavg_top", "lg_fedavg_code"}
    assert set(axes(files("experiment", "lg_fedavg")["c10"])["arm"]) == arms
    for arm in arms:
        config = composed("experiment=lg_fedavg/c10", f"arm={arm}")
        check(config)
        assert work(config) == (100, 0.1, 200, 1, 50)
        assert (config["optimizer"]["lr"], config["optimizer"]["momentum"]) == (0.1, 0.5)
        assert config["partition"]["shards_per_client"] == 2
        assert config["data"]["transform"] == {"_target_": "fedfeat.data.transforms.cifar_fedrep"}


@pytest.mark.parametrize(
    ("arm", "shared", "count"),
    [("lg_fedavg_top", {"fc2", "fc3"}, 13_110), ("lg_fedavg_code", {"conv1", "conv2"}, 2_872)],
)
def test_text_and_code_of_lg_fedavg_share_opposite_ends_of_the_network(arm, shared, count):
    """What `main_lg.py` takes for the last two layers are the convolutions (methods/lg_fedavg.md#preset)."""
    config = composed("experiment=lg_fedavg/c10", f"arm={arm}")
    builder = {key: value for key, value in config["model"].items() if key not in Start._fields}
    network = instantiate(builder)((3, 32, 32), 10)
    policies = tensor_policies(network, config["algorithm"]["client"]["personal"])
    sent = {name: p for name, p in network.named_parameters() if policies[name] != "personal"}
    assert {name.split(".")[1] for name in sent} == shared
    assert sum(p.numel() for p in sent.values()) == count


def test_the_grid_of_fedbabus_scripts():
    grid = axes(files("experiment", "fedbabu")["grid"])
    assert grid == {
        "arm": ["local", "fedavg", "fedper", "fedbabu", "ditto", "per_fedavg"],
        "partition.shards_per_client": ["10", "50", "100"], "federation.fraction": ["0.1", "1.0"],
        "federation.local_epochs": ["1", "4", "10"],
    }  # fmt: skip
    for epochs, rounds in ((1, 320), (4, 80), (10, 32)):
        config = composed("experiment=fedbabu/grid", f"federation.local_epochs={epochs}")
        check(config)
        assert work(config) == (100, 0.1, rounds, epochs, 50)
        assert config["federation"]["final_epochs"] == 5
        assert tuple(config["optimizer"][key] for key in ("lr", "momentum", "weight_decay")) == (
            0.1,
            0.9,
            0.0,
        )
        assert config["model"]["_target_"] == "fedfeat.models.mobilenet.mobilenet_v1_cifar"
        assert config["data"]["transform"] == {"_target_": "fedfeat.data.transforms.cifar100_fedrep"}
        factor = instantiate(config["schedule"])
        assert [factor(r, rounds) for r in (rounds // 2 - 1, rounds // 2, rounds * 3 // 4)] == pytest.approx(
            [1, 0.1, 0.01]
        )
