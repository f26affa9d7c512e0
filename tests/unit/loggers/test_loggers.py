"""What all loggers share: flat names, quick imports, configurations that merge."""

import subprocess
import sys

import pytest

from fedfeat.runs.text import flatten


def test_flatten():
    assert flatten({"a": {"b": 1, "c": {"d": None}}, "e": {}, "f": [1]}) == {
        "a/b": 1,
        "a/c/d": None,
        "e": {},
        "f": [1],
    }


def test_nothing_heavy_is_imported_at_start():
    code = (
        "import sys, fedfeat.commands.report, fedfeat.runs.observed, fedfeat.runs.directory, fedfeat.files\n"
        "from fedfeat.loggers import base, console, csv_logger, lightning\n"
        "heavy = {'torch', 'pandas', 'matplotlib', 'pytorch_lightning', 'wandb', 'tensorboard', 'mlflow', 'comet_ml'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("none", set()),
        ("csv", {"csv"}),
        ("quiet", {"console"}),
        ("wandb", {"wandb"}),
        ("mlflow", {"mlflow"}),
        ("comet", {"comet"}),
        ("[csv,wandb_offline]", {"csv", "wandb"}),
        ("[tensorboard,console]", {"tensorboard", "console"}),
        ("[comet_offline,mlflow,tensorboard]", {"comet", "mlflow", "tensorboard"}),
        ("all", {"csv", "console", "wandb", "tensorboard"}),
    ],
)
def test_logger_configs_merge_into_named_loggers(loggers, choice, names):
    built = loggers(choice)
    assert set(built) == names
    assert all(hasattr(logger, "log") for logger in built.values())


def test_offline_choices_change_their_service_only(loggers):
    built = loggers("[wandb_offline,comet_offline]", "logger.wandb.project=mine", "logger.wandb.tags=[a,b]")
    assert (built["wandb"].options["mode"], built["wandb"].options["resume"]) == ("offline", None)
    assert (built["wandb"].options["project"], built["wandb"].options["tags"]) == ("mine", ["a", "b"])
    assert (built["comet"].options["online"], built["comet"].options["project"]) == (0, "fedfeat")
