"""Presets of Psi-Net and Fed2: their numbers, their sweeps, and what each ablation changes."""

import json
from itertools import product

import pytest
import yaml
from presets import TINY, axes, chosen, composed, files

from fedfeat.config.choices import CONFIGS
from fedfeat.config.rules import check
from fedfeat.runs.finished import published_numbers
from fedfeat.runs.text import flatten

PRESETS = {name: path for name, path in files("experiment", "fed2").items() if not name.startswith("base")}

# Per cent, as methods/fed2.md#presets has them: the axis, and per value what FedAvg and what ours reaches.
CLASSES, CLIENTS, GROUPS, DEPTH = (
    "partition.classes_per_client", "federation.num_clients", "structure.groups", "structure.depth"
)  # fmt: skip
TABLES = {
    "t1_vgg9": (CLASSES, {3: (82, 83), 4: (84, 88), 5: (85, 88), 10: (88, 90)}),
    "t1_mbnet": (CLASSES, {3: (67, 86), 4: (71, 88), 5: (79, 90), 10: (85, 91)}),
    "t1_vgg16": (CLASSES, {30: (61, 64), 40: (64, 67), 50: (65, 68), 100: (66, 70)}),
    "t2_vgg9": (CLIENTS, {10: (85, 88), 20: (86, 88), 50: (83, 86), 100: (83, 87)}),
    "t2_mbnet": (CLIENTS, {10: (79, 90), 20: (85, 90), 50: (81, 89), 100: (78, 88)}),
    "fig5_norm": (CLASSES, {4: (84.13, 88.26)}),
    "ablation": (CLASSES, {5: (85, 88)}),
    "fig6_groups": (GROUPS, {10: (65.3, 68), 20: (65.3, 68), 100: (65.3, 67.2)}),
    "fig7_depth_c10": (DEPTH, {2: (86, 82), 4: (86, 87), 6: (86, 89), 9: (86, 90), 12: (86, 89), 13: (86, 87)}),
    "fig7_depth_c100": (DEPTH, {2: (65, 53), 4: (65, 62), 6: (65, 67), 9: (65, 68), 12: (65, 69), 13: (65, 68)}),
}  # fmt: skip


def put(config, key, value):
    """Set a dotted key of a plain configuration."""
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    config[last] = value


def test_every_preset_has_a_sweep_and_says_its_command():
    for name, path in PRESETS.items():
        assert f"# fedfeat --multirun experiment=fed2/{name}\n" in path.read_text()
        assert set(axes(path)) & {"algorithm", "arm", "data"}
    assert [path.stem for path in sorted((CONFIGS / "sweep").rglob("*.yaml"))] == ["agent", "seeds"]


@pytest.mark.parametrize("algorithm", ["fedavg", "fed2", "psi_net"])
@pytest.mark.parametrize("preset", TABLES)
def test_the_published_number_of_every_setting(preset, algorithm):
    key, table = TABLES[preset]
    config = composed(f"experiment=fed2/{preset}", f"algorithm={algorithm}")
    for value, (fedavg, ours) in table.items():
        if algorithm == "fedavg" and key.startswith("structure."):
            assert flatten(config, ".").get(key) is None
        else:
            put(config, key, value)
        percent = fedavg if algorithm == "fedavg" else ours
        assert published_numbers(config) == {"global/acc": pytest.approx(percent / 100)}


@pytest.mark.parametrize("name", PRESETS)
def test_every_point_of_a_sweep_has_its_name_and_its_table(name):
    """Composed once per algorithm or arm; further axes are plain keys, which must be there."""
    grid = axes(PRESETS[name])
    axis = "arm" if "arm" in grid else "algorithm"
    for choice in grid.pop(axis, ["centralized"]):
        last = [f"{key}={values[-1]}" for key, values in grid.items()]
        config = composed(f"experiment=fed2/{name}", f"{axis}={choice}", *last)
        check(config)
        assert config["group"] == f"fed2/{name}"
        assert config["algorithm"]["name"] == choice.strip("[]").split(",")[0]
        assert config["name"].startswith(name)
    if name in TABLES and not TABLES[name][0].startswith("structure."):
        key, table = TABLES[name]
        assert grid.get(key, [str(value) for value in table]) == [str(value) for value in table]


@pytest.mark.parametrize("name", ["fig6_groups", "fig7_depth_c10", "fig7_depth_c100"])
def test_one_command_runs_fedavg_once_and_ours_at_every_value(name):
    """Each stands beside its number."""
    key, table = TABLES[name]
    found = []
    for arm in axes(PRESETS[name])["arm"]:
        config = composed(f"experiment=fed2/{name}", f"arm={arm}")
        algorithm, value = config["algorithm"]["name"], flatten(config, ".").get(key)
        percent = table[next(iter(table))][0] if algorithm == "fedavg" else table[value][1]
        assert published_numbers(config) == {"global/acc": pytest.approx(percent / 100)}
        found.append((algorithm, value))
    assert found == [("fedavg", None), *product(("psi_net", "fed2"), table)]


def numbers_in(node):
    if isinstance(node, dict):
        return [number for key, value in node.items() if key != "by" for number in numbers_in(value)]
    return [node]


@pytest.mark.parametrize("name", PRESETS)
def test_targets_lie_around_every_published_accuracy(name):
    """So that rounds and bytes to what a paper reached, and to a little more, are measured."""
    config = composed(f"experiment=fed2/{name}")
    targets = config["federation"]["targets"]
    assert targets == sorted(targets)
    accuracies = numbers_in((config.get("published") or {}).get("global/acc", {}))
    assert bool(accuracies) == (name not in ("fig1_features", "fig4a", "fig4b_budget", "fig7_tv"))
    for accuracy in accuracies:
        below = max(target for target in targets if target <= accuracy)
        above = min(target for target in targets if target > accuracy)
        assert above - below <= 0.05 + 1e-9


def test_depth_by_total_variance_warms_up_as_long_as_the_papers():
    """Presets that repeat them; elsewhere the warm-up is shorter (methods/fed2.md#depth)."""
    for name in PRESETS:
        if "structure" in (config := composed(f"experiment=fed2/{name}", "arm=fed2")):
            assert config["structure"]["warmup_epochs"] == 50
    assert composed("algorithm=fed2")["structure"]["warmup_epochs"] == 10
    assert composed("experiment=fed2/t1_vgg9", "scale=mini")["structure"]["warmup_epochs"] == 10


def test_local_epochs_and_rounds_of_the_comparisons_with_fedma():
    """Workloads per client of methods/fed2.md#presets and methods/fed2.md#workload."""

    def work(preset, algorithm, *overrides):
        config = composed(f"experiment=fed2/{preset}", f"algorithm={algorithm}", *overrides)
        federation = config["federation"]
        assert (federation["num_clients"], config["partition"]["alpha"]) == (16, 0.5)
        return federation["local_epochs"], federation["num_rounds"]

    for epochs, rounds in {10: 200, 20: 100, 50: 40, 100: 20}.items():
        assert work("fig4b_budget", "fed2", f"federation.local_epochs={epochs}") == (epochs, rounds)
    found = {
        (algorithm, epochs): work("fig7_compute", algorithm, f"federation.local_epochs={epochs}")[1]
        for algorithm, epochs in product(("fedavg", "psi_net"), (1, 20, 50))
    }
    assert found == {
        ("fedavg", 1): 1000, ("fedavg", 20): 100, ("fedavg", 50): 40,
        ("psi_net", 1): 1000, ("psi_net", 20): 60, ("psi_net", 50): 40,
    }  # fmt: skip
    assert work("fig6_rounds", "fedavg") == work("fig6_rounds", "fedprox") == (20, 100)
    assert work("fig6_rounds", "fed2") == (50, 100)
    assert work("fig9", "fed2") == work("fig4a", "fedavg") == (20, 54)


def test_fedma_in_the_comparisons_with_it():
    """A round is one of vgg9's 9 layers, so passes take 9 rounds; their last layer trains three times as long."""

    def arm(preset, *overrides):
        config = composed(f"experiment=fed2/{preset}", "algorithm=fedma", *overrides)
        check(config)
        optimizer = config["optimizer"]
        assert (config["model"]["_target_"], config["federation"]["batch_size"]) == (
            "fedfeat.models.vgg.vgg9",
            64,
        )
        assert (config["federation"]["num_clients"], config["partition"]["alpha"]) == (16, 0.5)
        assert (optimizer["lr"], optimizer["momentum"]) == (0.01, 0.9)
        assert config["algorithm"]["client"]["weight_decay"] == 0
        assert config["algorithm"]["server"]["init"] == "shared"
        passes, left = divmod(config["federation"]["num_rounds"], 9)
        assert left == 0
        return config["federation"]["local_epochs"], passes

    assert arm("fig4a") == arm("fig9") == (20, 6)
    assert arm("fig4a", "federation.local_epochs=150") == (150, 6)
    assert arm("fig6_rounds") == (150, 11)
    budgets = {("fig4b_budget", e): 2000 for e in (10, 20, 50, 100)}
    budgets |= {("fig7_compute", e): 1000 if e == 1 else 2000 for e in (1, 20, 50, 150)}
    for (preset, epochs), budget in budgets.items():
        assert arm(preset, f"federation.local_epochs={epochs}") == (epochs, budget // ((8 + 3) * epochs))
    for preset in ("fig4a", "fig4b_budget", "fig6_rounds", "fig7_compute", "fig9"):
        assert "fedma" in axes(PRESETS[preset])["algorithm"]
        mini = composed(f"experiment=fed2/{preset}", "algorithm=fedma", "scale=mini")
        check(mini)
        assert (mini["federation"]["num_rounds"], mini["federation"]["local_epochs"]) == (18, 1)
        assert published_numbers(mini) == {}


def test_published_numbers_of_the_figures():
    def numbers(preset, algorithm, *overrides):
        return published_numbers(composed(f"experiment=fed2/{preset}", chosen(algorithm), *overrides))

    assert numbers("fig9", "fedavg") == {"global/acc": 0.857}
    assert numbers("fig9", "fedavg", "federation.local_epochs=50") == {}
    assert numbers("fig5_norm", "fedavg_bn") == {"global/acc": 0.8546}
    assert numbers("fig5_norm", "fed2_no_norm") == {}
    fig6 = numbers("fig6_rounds", "fed2")
    assert fig6["global/acc"] == 0.8829
    assert fig6["to_target/0.8829/rounds"] == 40
    assert numbers("fig7_compute", "fed2", "federation.local_epochs=1")["global/acc"] == 0.8996
    assert numbers("fig6_rounds", "fedma")["global/acc"] == 0.8753
    assert numbers("fig7_compute", "fedma", "federation.local_epochs=150")["global/acc"] == 0.8753
    assert "global/acc" not in numbers("fig7_compute", "fedma", "federation.local_epochs=20")
    assert numbers("t1_vgg9", "fed2", "partition.classes_per_client=7") == {}


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        (None, {}),
        ({"global/acc": 0.9}, {"global/acc": 0.9}),
        ({"global": {"acc": 0.9}}, {"global/acc": 0.9}),
        ({"x": {"by": ["a.b"], "1": 5}}, {"x": 5}),
        ({"x": {"by": ["a.b", "c"], 1: {"u": 5, "v": 6}}}, {"x": 6}),
        ({"x": {"by": ["c", "a.b"], "v": 7}}, {"x": 7}),
        ({"x": {"by": ["c"], "u": 7}}, {}),
        ({"x": {"by": ["c"], "v": {"1": 7}}}, {}),
        ({"x": {"by": ["missing"], "v": 7}}, {}),
    ],
)
def test_choices_of_published_numbers(published, expected):
    assert published_numbers({"a": {"b": 1}, "c": "v", "published": published}) == expected


def test_a_sweep_lies_in_the_folder_of_its_preset(cli, tmp_path):
    """Axes narrowed on the command line; folders name what differs, without the preset's name."""
    outcome = cli(
        "--multirun",
        "experiment=fed2/t1_vgg9",
        "algorithm=fedavg",
        "seed=0",
        "partition.classes_per_client=3,4",
        *TINY,
    )
    assert outcome.code == 0, outcome.stderr
    folder = tmp_path / "logs" / "sweeps" / "fed2" / "t1_vgg9"
    runs = [path.parent for path in folder.rglob("summary.json")]
    assert len(runs) == 2
    assert {path.parent for path in runs} == {folder}
    assert all(path.name.startswith("algorithm=fedavg,") and "t1_vgg9" not in path.name for path in runs)


def test_a_sweep_of_arms_with_their_settings(cli, tmp_path):
    """FedAvg, which has no groups, beside ours with 2 and 5 of them."""
    (tmp_path / "more" / "arm").mkdir(parents=True)
    for groups in (2, 5):
        text = f"# @package _global_\nstructure:\n  groups: {groups}\n"
        (tmp_path / "more" / "arm" / f"groups_{groups}.yaml").write_text(text)
    outcome = cli(
        "--config-dir", str(tmp_path / "more"), "--multirun", "experiment=fed2/fig6_groups", "seed=0",
        "arm=fedavg,[fed2,groups_2],[psi_net,groups_5]", "partition.classes_per_client=5", *TINY,
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    runs = list((tmp_path / "logs" / "sweeps" / "fed2" / "fig6_groups").glob("*/config.yaml"))
    found = {
        (config["algorithm"]["name"], flatten(config, ".").get(GROUPS))
        for config in (yaml.safe_load(path.read_text()) for path in runs)
    }
    assert found == {("fedavg", None), ("fed2", 2), ("psi_net", 5)}


def test_a_sweep_without_the_axes_of_its_preset(cli, tmp_path):
    outcome = cli(
        "--multirun", "experiment=fed2/fig6_groups", "hydra.sweeper.params=null", "algorithm=fedavg", "seed=0,1",
        "partition.classes_per_client=5", *TINY,
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    runs = list((tmp_path / "logs" / "sweeps" / "fed2" / "fig6_groups").glob("*/summary.json"))
    assert sorted(json.loads(path.read_text())["seed"] for path in runs) == [0, 1]
