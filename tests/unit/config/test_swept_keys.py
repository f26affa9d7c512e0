"""Which keys a run is told to be swept: those of the command line and the axes of presets."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from fedfeat.config.search_path import CONFIGS
from fedfeat.config.sweeps import SweptKeys


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("model=mlp", ""),
        ("seed=0,1 model=mlp optimizer.lr=choice(0.1,0.2)", "'optimizer.lr','seed'"),
        ("+optimizer.dampening=0,0.1", "'optimizer.dampening'"),
        ("sweep=seeds", "'seed'"),
        ("sweep=seeds seed=0 optimizer.lr=0.1,0.2", "'optimizer.lr','seed'"),
    ],
)
def test_swept_keys_are_told_before_what_the_user_gives(words, keys):
    GlobalHydra.instance().clear()
    words = words.split()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("train", [w for w in words if "," not in w], return_hydra_config=True)
    config.hydra.overrides.task = words
    config.hydra.overrides.hydra = ["hydra.verbose=false"]
    SweptKeys().on_multirun_start(config)
    assert config.hydra.overrides.hydra == [f"hydra.callbacks.swept.keys=[{keys}]", "hydra.verbose=false"]
