"""What the tests of presets share: composed configurations, and the axes of sweeps as Hydra reads them."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedfeat.config.choices import CONFIGS

TINY = ("data=synthetic", "data.loader.num_train=100", "data.loader.num_test=10", "federation.num_rounds=0",
        "model=mnist_cnn", "trainer=cpu")  # fmt: skip
"""Overrides of a run on random images that does nothing but begin."""


def files(group: str, paper: str) -> dict[str, Path]:
    """Give the files of a paper in a group, by name."""
    return {path.stem: path for path in (CONFIGS / group / paper).glob("*.yaml")}


def composed(*overrides: str) -> dict[str, Any]:
    """Compose a configuration, which takes a tenth of a second; the same one a second time is a copy."""
    return deepcopy(_composed(overrides))


@cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose(
            "train", ["paths.root=.", *overrides, "hydra.runtime.output_dir=run"], return_hydra_config=True
        )
    HydraConfig.instance().set_config(cfg)  # for ${hydra:runtime.output_dir}
    plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    return OmegaConf.to_container(plain, resolve=True, throw_on_missing=True)


def chosen(name: str) -> str:
    """Give the override that chooses an algorithm, or an arm that is more than one."""
    return f"{'algorithm' if (CONFIGS / 'algorithm' / f'{name}.yaml').exists() else 'arm'}={name}"


def axes(preset: Path) -> dict[str, list[str]]:
    """Give the values of each axis of a preset's sweep."""
    found = {}
    for key, values in OmegaConf.load(preset).hydra.sweeper.params.items():
        (override,) = OverridesParser.create().parse_overrides([f"{key}={values}"])
        found[key] = list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(values)]
    return found
