"""What all loggers share: flat names, quick imports, configurations that merge."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedfeat.runs.text import flatten


def test_flatten():
    assert flatten({"a": {"b": 1, "c": {"d": None}}, "e": {}, "f": [1]}) == {
        "a/b": 1,
        "a/c/d": None,
        "f": [1],
    }


def test_nothing_heavy_is_imported_at_start():
    code = (
        "import sys, fedfeat.commands.report, fedfeat.runs.figures, fedfeat.files\n"
        "from fedfeat.loggers import base, console, csv_logger, tensorboard_logger, wandb_logger\n"
        "print(sorted({'torch', 'pandas', 'matplotlib', 'wandb', 'tensorboard'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("none", set()),
        ("csv", {"csv"}),
        ("wandb", {"wandb"}),
        ("[csv,wandb_offline]", {"csv", "wandb"}),
        ("[tensorboard,console]", {"tensorboard", "console"}),
        ("all", {"csv", "console", "wandb", "tensorboard"}),
    ],
)
def test_logger_configs_merge_into_named_loggers(tmp_path, choice, names):
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    source = Path(__file__).parents[3] / "configs" / "logger"
    (tmp_path / "logger").symlink_to(source)
    (tmp_path / "main.yaml").write_text("defaults:\n  - logger: none\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        built = instantiate(compose("main", [f"logger={choice}"]).logger, _convert_="all")
    assert set(built) == names
    if "wandb_offline" in choice:
        assert built["wandb"].mode == "offline"
    assert all(hasattr(logger, "log") for logger in built.values())
