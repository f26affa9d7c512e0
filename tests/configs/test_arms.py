"""Arms and algorithms: what each changes, that it runs, and how a sweep takes them."""

import json
import re

import pytest
from hydra.utils import instantiate
from presets import TINY, chosen, composed
from torch import nn

from fedfeat.config.choices import CONFIGS, options
from fedfeat.config.rules import check
from fedfeat.models.network import NORMS
from fedfeat.models.vgg import vgg9
from fedfeat.runs.text import flatten

SETTINGS = {arm for arm in options("arm") if arm.startswith(("depth_", "groups_"))}
ARMS = sorted(set(options("arm")) - SETTINGS - {"none"})


@pytest.mark.parametrize(
    ("arm", "base", "changes"),
    [
        ("fedavg_restricted", "fedavg", {"algorithm.client.softmax_scope": "present_classes"}),
        ("fedavg_bn", "fedavg", {"model.norm": "bn"}),
        ("fed2_unpaired", "fed2", {"algorithm.server.pairing": "all"}),
        ("fed2_literal", "fed2_unpaired", {"algorithm.client.softmax_scope": "all"}),
        ("fed2_bn", "fed2", {"structure.norm_group": "bn"}),
        ("fed2_no_norm", "fed2", {"structure.norm_shared": "none", "structure.norm_group": "none"}),
        ("fed2_wide", "fed2", {"structure.width_factor": "match"}),
        # Trimmed networks have no other logits.
        ("psi_net", "fed2", {"structure.trim": True, "algorithm.client.softmax_scope": "all"}),
    ],
)
def test_an_ablation_changes_one_thing_only(arm, base, changes):
    found, expected = (
        flatten(composed("experiment=fed2/t1_vgg9", chosen(name)), ".") for name in (arm, base)
    )
    assert found == expected | changes | {"algorithm.name": arm, "name": f"t1_vgg9-{arm}"}


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_has_its_name_and_is_more_than_an_algorithm_or_just_one(arm):
    """Over presets too, which choose an algorithm themselves."""
    for preset in ((), ("experiment=fed2/t1_vgg9",), ("experiment=fedhenn/fh_t2_c10_100_2",)):
        found = composed(*preset, f"arm={arm}")
        check(found)
        assert found["algorithm"]["name"] == arm
        if chosen(arm).startswith("algorithm="):
            assert found == composed(*preset, f"algorithm={arm}")


def test_options_of_algorithms_are_about_algorithms_and_structure():
    """What changes another group is an arm. Some choose a structure, FedBABU its fine-tuning."""
    words = {}
    for path in (CONFIGS / "algorithm").rglob("*.yaml"):
        text = path.read_text()
        assert "@package" not in text, path
        words[path.relative_to(CONFIGS / "algorithm").as_posix()] = re.findall(r"override (/\S+): ", text)
    chosen_structure = ["/structure@_global_.structure"]
    chosen = ("fed2.yaml", "fed2_fedadam.yaml", "psi_net.yaml", "heterofl.yaml", "fedrolex.yaml")
    expected = dict.fromkeys(chosen, chosen_structure)
    expected |= {"fedbabu.yaml": ["/federation@_global_.federation"]}
    assert {name: found for name, found in words.items() if found} == expected


def test_fedavg_gn_has_the_widths_and_norms_of_fed2_and_is_dense():
    """In the shared layers too (methods/fed2.md#normalisation)."""
    found, grouped, fedavg = (composed(chosen(name)) for name in ("fedavg_gn", "fed2", "fedavg"))
    assert found["structure"] == grouped["structure"] | {"separate": False}
    assert found["algorithm"] == fedavg["algorithm"] | {"name": "fedavg_gn"}
    networks = {}
    for name in ("fedavg_gn", "fed2"):
        spec = instantiate(composed(chosen(name))["structure"])
        network = spec(vgg9((3, 8, 8), 10), spec.sets(vgg9((3, 8, 8), 10)))
        norms = [
            (path, type(module), len(module.weight))
            for path, module in network.named_modules()
            if isinstance(module, NORMS)
        ]
        networks[name] = [network.encoder.conv3.conv.out_channels, *norms]
    assert networks["fedavg_gn"] == networks["fed2"]
    assert [kind for _, kind, _ in networks["fed2"][1:]] == [nn.BatchNorm2d] * 3 + [nn.GroupNorm] * 3


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_a_setting_beside_an_arm_is_one_key_of_its_structure(setting):
    key, _, value = setting.partition("_")
    for arm in ("psi_net", "fed2", "fed2_bn"):
        found, expected = (
            flatten(composed("experiment=fed2/fig6_groups", f"arm={choice}"), ".")
            for choice in (f"[{arm},{setting}]", arm)
        )
        assert found == expected | {f"structure.{key}": int(value)}


@pytest.mark.parametrize(
    "arm",
    ["fedavg_restricted", "fedavg_bn", "fedavg_gn", "fed2_unpaired", "fed2_bn", "fed2_no_norm", "fed2_wide"],
)
def test_every_ablation_runs(arm, cli, tmp_path):
    outcome = cli(
        chosen(arm), "federation.num_rounds=1", "federation.local_epochs=null",
        "federation.local_steps=1", "federation.cohort_size=2", "trainer=cpu",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    assert f'"algorithm": "{arm}"' in (tmp_path / "run" / "summary.json").read_text()


@pytest.mark.slow
def test_an_arm_of_a_sweep_and_what_is_none(cli, tmp_path):
    """One axis of arms gives way to an arm, or to another algorithm; an arm under another algorithm is refused."""
    sweep = ("--multirun", "experiment=fed2/fig5_norm", "seed=0", *TINY)
    for words in (
        ["arm=fedavg,fedavg_gn"],
        ["algorithm=fedprox"],
        ["arm=none", "algorithm=fedavg_restricted"],
    ):
        outcome = cli(*sweep, *words)
        assert outcome.code == 0, outcome.stderr
    runs = list((tmp_path / "logs" / "sweeps" / "fed2" / "fig5_norm").glob("*/summary.json"))
    names = {json.loads(path.read_text())["algorithm"] for path in runs}
    assert names == {"fedavg", "fedavg_gn", "fedprox", "fedavg_restricted"}
    outcome = cli(*sweep, "algorithm=fedprox", "arm=fedavg")
    assert outcome.code == 2
    assert outcome.stderr.splitlines()[-1].startswith(
        "fedfeat: arm must be none beside algorithm=fedprox, but it is '"
    )
    assert len([*(tmp_path / "logs" / "sweeps" / "fed2" / "fig5_norm").iterdir()]) == len(runs) + 1


def test_an_arm_takes_the_place_of_an_axis_of_algorithms(cli, tmp_path):
    words = ("federation.num_rounds=1", "federation.local_epochs=1", "trainer=cpu", "seed=0")
    outcome = cli("--multirun", "experiment=digits_10x3", "arm=fedavg,fedavg_bn", *words)
    assert outcome.code == 0, outcome.stderr
    runs = list((tmp_path / "logs" / "sweeps" / "digits_10x3").glob("*/summary.json"))
    assert {json.loads(path.read_text())["algorithm"] for path in runs} == {"fedavg", "fedavg_bn"}
    assert len(runs) == 2
