"""What the tests of presets share: composed configurations, and the axes of sweeps as Hydra reads them."""

import csv
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedfeat.config.choices import CONFIGS


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


def tiny_tweets(root: Path, num_users: int = 10, each: int = 12) -> list[str]:
    """Write a few tweets in the form of Sentiment140 and give the overrides that read all of them."""
    words = ("rain", "sun", "tea", "code", "train")
    rows = [
        [
            4 * (i % 2),
            user * each + i,
            "Mon",
            "NO_QUERY",
            f"user{user}",
            f"{words[i % 5]} {words[(i * user) % 5]}",
        ]
        for user in range(num_users)
        for i in range(each)
    ]
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "tweets.csv", "w", encoding="latin-1", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return [f"data.root={root}", "data.loader.sample_fraction=1.0", "data.loader.min_tweets=2",
            "data.loader.num_users=null"]  # fmt: skip
