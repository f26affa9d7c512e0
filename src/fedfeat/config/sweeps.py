"""Which keys a sweep sweeps, told to each of its runs, which is composed of its own values alone."""

from collections.abc import Sequence
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, flag_override

from fedfeat.config.search_path import overrides


class SweptKeys(Callback):
    """Hydra's hook before a sweep; `configs/hydra/default.yaml` names the runs' directories by what it finds.

    Args:
        keys: What this found, in a run of the sweep.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self.keys = tuple(keys)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Hydra hook: say the keys in an override that every run gets, before those of the user."""
        # An axis of a preset stays one where the command line gives it a single value.
        axes = OmegaConf.select(config, "hydra.sweeper.params") or {}
        given = [*overrides(config.hydra.overrides.task)]
        # An arm brings its own algorithm (`choices.check_arm`): either takes the place of an axis of the other.
        chosen = {one.key_or_group for one in given if one.value() != "none"}
        with flag_override(config.hydra, ["readonly", "struct"], False):
            for one, other in (("arm", "algorithm"), ("algorithm", "arm")):
                if one in chosen:
                    axes.pop(other, None)
        keys = {*map(str, axes), *(one.get_key_element() for one in given if one.is_sweep_override())}
        words = ",".join(f"'{key.lstrip('+')}'" for key in sorted(keys))
        with flag_override(config.hydra, ["readonly", "struct"], False):
            config.hydra.overrides.hydra.insert(0, f"hydra.callbacks.swept.keys=[{words}]")
