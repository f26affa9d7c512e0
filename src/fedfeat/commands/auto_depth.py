"""Depth of group separation by total variance: a warm-up of the dense network tells where features part.

See methods/fed2.md#depth.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from fedfeat.client import ClientModule, Weights
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.clients.networks import OneNetwork
from fedfeat.clients.tasks import Task
from fedfeat.clients.turns import WorkerSettings
from fedfeat.clients.worker import Worker
from fedfeat.data.federated import FederatedData
from fedfeat.errors import ConfigError
from fedfeat.features.diagnostics import AlignmentProbe
from fedfeat.features.preference import choose_depth, total_variance, tv_threshold
from fedfeat.files import atomic_write_json, fields_of
from fedfeat.models.group_plan import numbered_layers
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.network import Network
from fedfeat.params import snapshot
from fedfeat.runs.feature_figures import tv_curve
from fedfeat.runs.figures import save_figure

_log = logging.getLogger("fedfeat")
FILE = "structure.json"
_COST = ("examples", "flops")


def depth_by_warmup(
    spec: GroupSeparation,
    build: Callable[[], Network],
    data: FederatedData,
    optimizer: partial[Optimizer],
    trainer: LocalTrainer,
    settings: WorkerSettings,
    probe: AlignmentProbe,
    run_dir: Path,
) -> int:
    """Train the dense network on the pooled data, compute TV of every layer and choose the number of shared layers.

    What was found lies in ``structure.json`` and ``figures/total_variance.png`` of the run directory; a run that is
    started again reads it there.

    Args:
        spec: How the network will be separated.
        build: Makes the dense network with the common initial weights.
        data: The federation's data.
        optimizer: Of the warm-up, the same as of local fits.
        trainer: The Trainer of local fits.
        settings: Of local fits.
        probe: How class preferences are taken.
        run_dir: The run directory.
    """
    stored = stored_depth(run_dir)
    if stored is not None:
        return stored
    client = partial(ClientModule, optimizer=optimizer)
    worker = Worker(data.pooled(), OneNetwork(build), client, trainer, settings, probe)
    steps = spec.warmup_epochs * worker.steps_per_epoch(0)
    update = worker.fit(Task(0, 0, Weights(snapshot(worker.module.model)), None, steps))
    names, values = _tv_of_layers(worker, spec.layer_unit)
    if not values:
        raise ConfigError.rule("structure.depth", "be a number for a network without hidden layers", "auto")
    threshold = tv_threshold(values, spec.tau)
    depth = max(choose_depth(values, spec.tau), 1)
    if depth < len(values):
        why = f"the next one, {names[depth]}, has total variance {values[depth]:.3f}"
    else:
        why = "no hidden layer exceeds the threshold, so only the last layer is split"
    reason = (
        f"structure.depth=auto: {depth} of {len(values) + 1} layers stay shared; {why} (threshold {threshold:.3f}) "
        f"after {spec.warmup_epochs} epochs of warm-up."
    )
    _log.info(reason)
    save_figure(
        tv_curve(names, {data.dataset.name: values}, {data.dataset.name: depth}, tau=spec.tau),
        run_dir / "figures" / "total_variance.png",
    )
    found = {
        "depth": depth,
        "layers": names,
        "total_variance": values,
        "threshold": threshold,
        "reason": reason,
        **{name: update.metrics[name] for name in _COST},
    }
    atomic_write_json(run_dir / FILE, found)
    return depth


def warmed(
    data: FederatedData,
    optimizer: partial[Optimizer],
    trainer: LocalTrainer,
    settings: WorkerSettings,
    probe: AlignmentProbe,
    run_dir: Path,
    structure: GroupSeparation,
    build: Callable[[], Network],
) -> GroupSeparation:
    """Give a group separation the depth that `depth_by_warmup` finds."""
    depth = depth_by_warmup(structure, build, data, optimizer, trainer, settings, probe, run_dir)
    return replace(structure, depth=depth)


def stored_depth(run_dir: Path) -> int | None:
    """Read the depth that a run has chosen, or None."""
    depth = _found(run_dir).get("depth")
    return None if depth is None else int(depth)


def warm_up_cost(run_dir: Path) -> dict[str, float]:
    """Read the training examples and FLOPs that a run has spent on its depth, which its counters begin with."""
    found = _found(run_dir)
    return {f"compute/{name}": float(found[name]) for name in _COST if name in found}


def _found(run_dir: Path) -> dict[str, Any]:
    path = run_dir / FILE
    if not path.exists():
        return {}
    with fields_of(path, "say which depth the run has chosen") as fields:
        return {**fields}


def _tv_of_layers(worker: Worker, unit: str) -> tuple[list[str], list[float]]:
    """Give name and TV of each hidden layer; a block of several convolutions has their mean.

    The last layer is left out: each of its neurons is a class, so its TV is near the largest there is in any network.
    """
    model = worker.module.model
    assert isinstance(model, Network)
    assert worker.probe is not None
    preferences = worker.preferences(worker.module)
    tv = {
        layer: total_variance(vectors, worker.probe.pref_neg)
        for layer, vectors in zip(preferences.layers, preferences.vectors, strict=True)
    }
    paths = {id(module): name for name, module in model.named_modules()}
    names: list[str] = []
    values: list[list[float]] = []
    for module, number in numbered_layers(model, unit):
        path = paths[id(module)]
        if number == len(names):
            names.append(path.split(".")[1] if unit == "block" else path.partition(".")[2])
            values.append([])
        values[number].append(tv[path])
    return names[:-1], [sum(found) / len(found) for found in values[:-1]]
