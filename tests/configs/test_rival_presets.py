"""Presets of the classic rivals: settings, published numbers and sweeps."""

import pytest
from presets import axes, chosen, composed, files

from fedfeat.config.rules import check
from fedfeat.runs.finished import published_numbers

SEEDS = {"seed": ["0", "1", "2"]}


def presets(paper):
    return {name: path for name, path in files("experiment", paper).items() if not name.startswith("base")}


# NIID-Bench's README and Flower's, per cent: the partition with its key, the learning arms, and what they reached.
NIID_ARMS = ("fedavg", "fedprox", "scaffold", "fednova")
STRONG = ("fedavg", "fedprox_mu001", "scaffold", "fednova")
DIRICHLET, LABELS = ("schemes.Dirichlet", "alpha"), ("label_skew.FixedLabels", "labels_per_client")
QUANTITY, IID = ("schemes.QuantitySkew", "alpha"), ("schemes.Iid", None)
NIID = {
    "dir05": (DIRICHLET, 0.5, NIID_ARMS, (68.2, 67.9, 69.8, 66.8)),
    "labels_2": (LABELS, 2, STRONG, (49.8, 50.7, 49.1, 46.5)),
    "quantity": (QUANTITY, 0.5, STRONG, (72.0, 71.2, 62.4, 10.0)),
    "vgg11_dir01": (DIRICHLET, 0.1, STRONG, (84.0, 84.4, 85.5, 84.4)),
    "p100_dir05": (DIRICHLET, 0.5, NIID_ARMS, (59.4, 58.8, 10.0, 60.0)),
    "p100_labels_2": (LABELS, 2, NIID_ARMS, (45.3, 39.3, 10.0, 48.0)),
    "p100_iid": (IID, None, STRONG, (65.6, 66.0, 10.0, 66.1)),
    "flower_dir05": (DIRICHLET, 0.5, STRONG, (62.47, 65.63, 68.08, 63.89)),
    "flower_iid": (IID, None, STRONG, (71.32, 71.26, 71.66, 70.69)),
    "flower_labels": (LABELS, 2, STRONG, (51.17, 50.44, 49.42, 46.9)),
}


@pytest.mark.parametrize("name", NIID)
def test_a_row_of_niid_bench(name):
    (scheme, key), value, arms, numbers = NIID[name]
    assert set(presets("niid_bench")) == set(NIID)
    for arm, percent in zip(arms, numbers, strict=True):
        config = composed(f"experiment=niid_bench/{name}", f"algorithm={arm}")
        check(config)
        federation = config["federation"]
        many, deep = name.startswith("p100"), name.startswith("vgg11")
        assert config["data"]["name"] == "cifar10"
        assert config["data"]["transform"] == {"_target_": "fedfeat.data.transforms.cifar_niid"}
        assert config["model"]["_target_"] == f"fedfeat.models.{'vgg.vgg11' if deep else 'cnn.valid_cnn'}"
        assert deep or (config["model"]["widths"], config["model"]["hidden"]) == ([6, 16], [120, 84])
        assert config["partition"]["_target_"] == f"fedfeat.data.partition.{scheme}"
        assert key is None or config["partition"][key] == value
        work = ("num_clients", "fraction", "num_rounds", "local_epochs", "batch_size", "opt_state")
        rounds = 500 if many else 100 if deep else 50
        expected = (100 if many else 10, 0.1 if many else None, rounds, 10, 64, "reset")
        assert tuple(federation[one] for one in work) == expected
        optimizer = config["optimizer"]
        assert tuple(optimizer[one] for one in ("lr", "momentum", "weight_decay")) == (0.01, 0.9, 1e-5)
        assert config["schedule"] == {"_target_": "fedfeat.rounds.schedules.Constant"}
        mu = {"fedprox": 0.001, "fedprox_mu001": 0.01}.get(arm)
        assert config["algorithm"]["client"].get("mu") == mu
        assert published_numbers(config) == {"global/acc": pytest.approx(percent / 100)}
    assert axes(presets("niid_bench")[name]) == {"algorithm": list(arms)} | SEEDS | (
        {"partition.labels_per_client": ["1", "2", "3"]} if name == "flower_labels" else {}
    )


def test_dirichlet_shares_of_niid_bench_are_capped_and_have_ten_examples_at_least():
    partition = composed("experiment=niid_bench/dir05")["partition"]
    assert (partition["cap"], partition["min_size"], partition["val_fraction"]) == (True, 10, 0.0)
    assert composed("experiment=niid_bench/quantity")["partition"]["min_size"] == 10


def test_flower_has_numbers_for_one_to_three_labels():
    rows = {1: (10.0, 12.71, 10.0, 10.0), 3: (59.11, 59.2, 61.0, 57.83)}
    for labels, numbers in rows.items():
        for arm, percent in zip(STRONG, numbers, strict=True):
            words = (f"algorithm={arm}", f"partition.labels_per_client={labels}")
            config = composed("experiment=niid_bench/flower_labels", *words)
            assert published_numbers(config) == {"global/acc": pytest.approx(percent / 100)}
            assert config["name"] == f"flower_labels-{arm}-{labels}"


# Flower's rerun of FedNova's Table 1, per cent: learning rate, momentum, mu, and E = 2 and E ~ U(2, 5).
FEDNOVA = {
    "fedavg": (0.05, 0.0, None, 62.35, 64.30),
    "fedavg_momentum": (0.02, 0.9, None, 70.78, 72.75),
    "fedprox_mu0005": (0.05, 0.0, 0.005, 62.30, 64.47),
    "fednova": (0.05, 0.0, None, 67.04, 70.54),
    "fednova_momentum": (0.02, 0.9, None, 73.01, 74.26),
    "fednova_fedprox": (0.05, 0.0, 0.005, 67.00, 69.25),
}


@pytest.mark.parametrize(("name", "epochs", "late"), [("epochs_2", 2, 0.0), ("epochs_2_to_5", 5, 1.0)])
def test_fednovas_table_as_flower_reran_it(name, epochs, late):
    assert set(presets("fednova")) == {"epochs_2", "epochs_2_to_5"}
    assert axes(presets("fednova")[name]) == {"arm": list(FEDNOVA)} | SEEDS
    for arm, (lr, momentum, mu, *numbers) in FEDNOVA.items():
        config = composed(f"experiment=fednova/{name}", f"arm={arm}")
        check(config)
        assert config["name"] == f"{name}-{arm}"
        federation, partition, optimizer = config["federation"], config["partition"], config["optimizer"]
        assert config["data"]["transform"] == {"_target_": "fedfeat.data.transforms.cifar_fednova"}
        assert config["model"]["_target_"] == "fedfeat.models.vgg.vgg11"
        assert (partition["alpha"], partition["cap"], partition["min_size"]) == (0.1, True, 10)
        work = ("num_clients", "fraction", "num_rounds", "local_epochs", "batch_size", "opt_state")
        assert tuple(federation[one] for one in work) == (16, None, 100, epochs, 32, "reset")
        assert tuple(optimizer[one] for one in ("lr", "momentum", "weight_decay")) == (lr, momentum, 1e-4)
        assert config["schedule"] == {"_target_": "fedfeat.rounds.schedules.Constant"}
        assert config["scenario"]["straggler_fraction"] == late
        assert config["scenario"]["straggler_least"] == (2 if late else 1)
        assert config["algorithm"]["client"].get("mu") == mu
        percent = numbers[1 if late else 0]
        assert published_numbers(config) == {"global/acc": pytest.approx(percent / 100)}


def test_the_authors_of_fednova_cut_the_learning_rate_for_good():
    schedule = composed("experiment=fednova/epochs_2", "schedule=milestones")["schedule"]
    assert (schedule["shares"], schedule["gamma"]) == ([0.5, 0.75], 0.1)


def test_the_example_of_feddyns_code():
    assert axes(presets("feddyn")["c10"]) == {
        "algorithm": ["fedavg", "scaffold", "feddyn"], "federation.fraction": ["0.1", "1.0"]
    } | SEEDS  # fmt: skip
    config = composed("experiment=feddyn/c10")
    check(config)
    federation, optimizer = config["federation"], config["optimizer"]
    work = ("num_clients", "fraction", "num_rounds", "local_epochs", "batch_size")
    assert tuple(federation[one] for one in work) == (100, 0.1, 1000, 5, 50)
    assert tuple(optimizer[one] for one in ("lr", "momentum", "weight_decay")) == (0.1, 0.0, 1e-3)
    assert config["trainer"]["gradient_clip_val"] == 10.0
    assert (config["model"]["widths"], config["model"]["hidden"]) == ([64, 64], [384, 192])
    assert config["partition"]["_target_"].endswith(".ClientDirichlet")
    assert config["partition"]["alpha"] == 0.6
    assert config["algorithm"]["client"]["alpha"] == 0.01
    assert published_numbers(config) == {}


@pytest.mark.parametrize(
    ("arm", "mu", "percent"),
    [("fedavg", None, None), ("fedprox", 0.001, 68.52), ("moon", 5.0, None), ("moon_mu1", 1.0, 70.71)],
)
def test_moon_as_flower_reruns_it(arm, mu, percent):
    assert axes(presets("moon")["c10"]) == {"arm": ["fedavg", "fedprox", "moon", "moon_mu1"]} | SEEDS
    config = composed("experiment=moon/c10", f"arm={arm}")
    check(config)
    federation, optimizer, client = config["federation"], config["optimizer"], config["algorithm"]["client"]
    work = ("num_clients", "fraction", "num_rounds", "local_epochs", "batch_size", "opt_state")
    assert tuple(federation[one] for one in work) == (10, None, 100, 10, 64, "reset")
    assert tuple(optimizer[one] for one in ("lr", "momentum", "weight_decay")) == (0.01, 0.9, 1e-5)
    assert (config["model"]["widths"], config["model"]["hidden"]) == ([6, 16], [120, 84])
    assert config["data"]["transform"] == {"_target_": "fedfeat.data.transforms.cifar_fedma"}
    assert (config["partition"]["alpha"], config["partition"]["cap"]) == (0.5, True)
    assert (client.get("mu"), config["name"]) == (mu, f"c10-{arm}")
    if arm.startswith("moon"):
        assert (client["tau"], client["projection"]) == (0.5, 256)
    assert published_numbers(config) == ({"global/acc": pytest.approx(percent / 100)} if percent else {})


FEDTGP_ARMS = ("lg_fedavg", "fd", "fedproto", "fedtgp")
FEDTGP = {
    "c10_pathological": (86.82, 87.24, 83.39, 90.02),
    "c100_pathological": (57.01, 56.99, 53.59, 61.86),
    "c10_dir01": (84.55, 86.01, 82.07, 88.15),
    "c100_dir01": (40.65, 41.54, 36.34, 46.94),
}


@pytest.mark.parametrize("name", FEDTGP)
def test_a_column_of_fedtgps_tables(name):
    assert set(presets("fedtgp")) == set(FEDTGP)
    assert axes(presets("fedtgp")[name]) == {"arm": ["local", *FEDTGP_ARMS]} | SEEDS
    data, split = name.split("_")
    for arm, percent in zip(("local", *FEDTGP_ARMS), (None, *FEDTGP[name]), strict=True):
        config = composed(f"experiment=fedtgp/{name}", f"arm={arm}")
        check(config)
        federation = config["federation"]
        work = ("num_clients", "fraction", "num_rounds", "local_epochs", "batch_size")
        assert tuple(federation[one] for one in work) == (20, None, 1000, 1, 10)
        assert (config["optimizer"]["lr"], config["optimizer"]["momentum"]) == (0.01, 0.0)
        assert (len(config["pool"]["models"]), config["pool"]["cyclic"], config["pool"]["head_width"]) == (
            8,
            True,
            512,
        )
        assert config["data"]["name"] == {"c10": "cifar10", "c100": "cifar100"}[data]
        assert config["partition"]["test_share"] == 0.25
        inner = config["partition"]["inner"]
        if split == "dir01":
            assert (inner["alpha"], inner["min_size"]) == (0.1, 40)
        else:
            assert inner["classes_per_client"] == {"c10": 2, "c100": 10}[data]
        expected = {"last10/personal/acc_weighted": pytest.approx(percent / 100)} if percent else {}
        assert published_numbers(config) == expected
        assert config["name"] == f"{name}-{arm}"


HETEROFL = {
    "mnist_iid": (200, 0.01, (0.5,), 99.23),
    "mnist_labels_2": (400, 0.01, (0.5,), 98.5),
    "c10_iid": (400, 0.1, (0.375, 0.625), 87.46),
    "c10_labels_2": (800, 0.1, (0.375, 0.625), 46.96),
}


@pytest.mark.parametrize("name", HETEROFL)
def test_a_row_of_heterofl_as_flower_reruns_it(name):
    rounds, lr, shares, percent = HETEROFL[name]
    assert set(presets("heterofl")) == set(HETEROFL)
    for arm in ("heterofl", "fedrolex"):
        config = composed(f"experiment=heterofl/{name}", f"algorithm={arm}")
        check(config)
        federation, optimizer = config["federation"], config["optimizer"]
        work = ("num_clients", "fraction", "num_rounds", "local_epochs", "batch_size")
        assert tuple(federation[one] for one in work) == (100, 0.1, rounds, 5, 10)
        assert tuple(optimizer[one] for one in ("lr", "momentum", "weight_decay")) == (lr, 0.9, 5e-4)
        assert (config["schedule"]["shares"], config["schedule"]["gamma"]) == (list(shares), 0.1)
        assert config["trainer"]["gradient_clip_val"] == 1.0
        assert config["structure"]["levels"] == [1.0, 0.5, 0.25, 0.125, 0.0625]
        assert config["structure"]["dynamic"] is True
        assert config["data"]["name"] == ("cifar10" if name.startswith("c10") else "mnist")
        assert config["partition"]["_target_"].endswith(".shards" if "labels" in name else ".Iid")
        expected = {"global/acc": pytest.approx(percent / 100)} if arm == "heterofl" else {}
        assert published_numbers(config) == expected
    assert axes(presets("heterofl")[name]) == {"algorithm": ["heterofl", "fedrolex"]} | SEEDS


PAPERS = ("niid_bench", "fednova", "feddyn", "fedopt", "lg_fedavg", "fedbabu", "heterofl")
EVERY = [(paper, name) for paper in PAPERS for name in presets(paper)]


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_every_preset_says_its_command_and_every_arm_has_its_name(paper, name):
    path = presets(paper)[name]
    assert f"# fedfeat --multirun experiment={paper}/{name}\n" in path.read_text()
    grid = axes(path)
    axis = "arm" if "arm" in grid else "algorithm"
    for arm in grid.pop(axis):
        last = [f"{key}={values[-1]}" for key, values in grid.items()]
        config = composed(f"experiment={paper}/{name}", f"{axis}={arm}", *last)
        check(config)
        assert config["group"] == f"{paper}/{name}"
        assert config["algorithm"]["name"] == arm
        assert config["name"].startswith(f"{name}-{arm}")


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_targets_lie_on_both_sides_of_every_published_accuracy(paper, name):
    config = composed(f"experiment={paper}/{name}")
    targets = config["federation"]["targets"]
    assert targets == sorted(targets)
    grid = axes(presets(paper)[name])
    for arm in grid.get("arm") or grid["algorithm"]:
        for accuracy in published_numbers(composed(f"experiment={paper}/{name}", chosen(arm))).values():
            below = max(target for target in targets if target <= accuracy)
            above = min(target for target in targets if target > accuracy)
            assert accuracy < 0.3 or above - below <= 0.05 + 1e-9, accuracy


@pytest.mark.parametrize(("paper", "name"), EVERY)
def test_mini_is_the_same_method_and_partition_and_stands_beside_no_number(paper, name):
    whole, mini = (composed(f"experiment={paper}/{name}", *more) for more in ((), ("scale=mini",)))
    check(mini)
    assert published_numbers(mini) == {}
    assert all(mini[part] == whole[part] for part in ("algorithm", "model", "partition", "optimizer"))
    assert mini["federation"]["num_rounds"] == 18
