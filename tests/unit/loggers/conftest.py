"""Fixtures of the loggers' tests."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from PIL import Image

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    Image.new("RGB", (8, 6), (255, 0, 0)).save(path)
    return path


@pytest.fixture
def loggers(tmp_path_factory, monkeypatch):
    """Build the loggers of a choice as `train` does, by name; what they share lies in ``root`` below."""
    folder = tmp_path_factory.mktemp("configs")
    monkeypatch.setenv("FEDFEAT_ROOT", str(folder))
    for group in ("logger", "paths"):
        (folder / group).symlink_to(CONFIGS / group)
    (folder / "main.yaml").write_text("defaults:\n  - logger: none\n  - paths: default\n")

    def build(choice, *overrides):
        with initialize_config_dir(str(folder), version_base="1.3"):
            cfg = compose("main", [f"logger={choice}", *overrides])
        return instantiate(cfg.logger, _convert_="all")

    build.root = folder
    return build
