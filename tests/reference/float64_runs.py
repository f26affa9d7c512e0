"""Whole configurations in float64, a handful of clients and rounds each."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from fedfeat import tree
from fedfeat.commands.assembly import build_experiment
from fedfeat.config.choices import CONFIGS
from fedfeat.executors.stacked.fit import StackedClients
from fedfeat.rounds.loop import run_rounds

SMALL = (
    "data=digits", "data.loader.num_train=120", "data.loader.num_test=30", "model.width=4",
    "federation.num_clients=4", "federation.num_rounds=3", "federation.batch_size=8", "federation.local_epochs=1",
    "trainer=cpu", "trainer.num_threads=1", "trainer.precision=64-true",
)  # fmt: skip


def experiment_of(folder, *overrides, small=SMALL):
    """Build an experiment."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", [*small, *overrides, f"paths.root={folder}"])
    return build_experiment(cfg, OmegaConf.to_container(cfg, resolve=True), folder)


def steps_of(folder, *overrides):
    """Give an experiment after its rounds, and where it stood and what happened after each."""
    experiment = experiment_of(folder, *overrides)
    try:
        progress, _ = experiment.begin()
        parts = (experiment.plan, experiment.server, experiment.executor, experiment.data, experiment.store)
        return experiment, list(run_rounds(*parts, progress))
    finally:
        experiment.executor.close()


def run(folder, *overrides):
    """Give all tensors of the last state and of what clients keep, and the records."""
    experiment, steps = steps_of(folder, *overrides)
    kept = [experiment.store.get(k) for k in experiment.store]
    return tree.tensors([steps[-1][0].state, kept]), [record for _, record in steps]


def floats(tensors):
    """Those of a floating type."""
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def assert_same(left, right, tolerance=1e-12):
    """Weights and metrics agree, relative to the largest weight."""
    (found, records), (expected, others) = left, right
    assert len(found) == len(expected) > 0
    for mine, its in zip(floats(found), floats(expected), strict=True):
        assert mine.dtype == its.dtype == torch.float64
        torch.testing.assert_close(mine, its, rtol=0, atol=tolerance * max(1.0, float(its.abs().max())))
    for mine, its in zip(records, others, strict=True):
        for name in ("global/acc", "global/loss", "personal/acc_mean", "train/loss"):
            value, other = mine.metrics.get(name), its.metrics.get(name)
            assert (value is None) == (other is None)
            assert value is None or abs(value - other) <= tolerance * max(1.0, abs(other)), name


def assert_stacks(folder, *overrides, tolerance=1e-12):
    """A whole run of clients that train stacked is that of single ones."""
    fits, fit = [], StackedClients.fit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StackedClients, "fit", lambda self, *how: (fits.append(self), fit(self, *how))[1])
        expected = run(folder / "serial", *overrides)
        assert not fits
        found = run(folder / "stacked", *overrides, "executor=vectorized")
    assert fits
    assert_same(found, expected, tolerance)
