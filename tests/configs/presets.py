"""What the tests of presets share: composed configurations, and the axes of sweeps as Hydra reads them."""

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedfeat.choices import CONFIGS


def files(group: str, paper: str) -> dict[str, Path]:
    """Give the files of a paper in a group, by name."""
    return {path.stem: path for path in (CONFIGS / group / paper).glob("*.yaml")}


def composed(*overrides: str) -> dict[str, Any]:
    """Compose a configuration."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return OmegaConf.to_container(compose("train", list(overrides)), resolve=True)


def axes(sweep: Path) -> dict[str, list[str]]:
    """Give the values of each axis of a sweep."""
    found = {}
    for key, values in OmegaConf.load(sweep).hydra.sweeper.params.items():
        (override,) = OverridesParser.create().parse_overrides([f"{key}={values}"])
        found[key] = list(override.sweep_string_iterator()) if override.is_sweep_override() else [str(values)]
    return found
