"""``fedfeat-features``: whose neurons learn which classes, from the checkpoint of any run.

Every client trains once from the checkpoint, as in the round that would follow; its class preferences are then
compared with the other clients' neuron by neuron. The run itself stays as it is.
"""

import argparse
import csv
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from fedfeat.assembly import build_experiment
from fedfeat.errors import CheckpointError, UserError
from fedfeat.explain import explain
from fedfeat.files import atomic_write_bytes

if TYPE_CHECKING:
    from fedfeat.diagnostics import Alignment
    from fedfeat.experiment import Experiment


class Inspection(NamedTuple):
    """What was found in one run.

    Attributes:
        name: Name of the run.
        round_idx: Rounds that the checkpoint has behind it.
        alignment: Of all clients after local training; None with fewer than two clients.
        layers: Short names of the server's layers, the last one included.
        server_tv: Total variance of each of them; empty where the server has no model.
        class_names: Names of the classes.
    """

    name: str
    round_idx: int
    alignment: "Alignment | None"
    layers: list[str]
    server_tv: list[float]
    class_names: tuple[str, ...]


def inspect(run_dir: Path, round_idx: int | None, probe: dict[str, Any]) -> Inspection:
    """Compare the clients of a run.

    Args:
        run_dir: Directory of the run.
        round_idx: Which checkpoint; None is the newest.
        probe: Arguments of `diagnostics.AlignmentProbe`.

    Raises:
        CheckpointError: There is no run or no such checkpoint.
    """
    from fedfeat.diagnostics import align
    from fedfeat.features.figures import short_names
    from fedfeat.features.preference import total_variance

    experiment, checkpoint = _open(run_dir, round_idx, probe)
    experiment.store.restore(checkpoint.manifest)
    worker, measured = experiment.executor.worker, {}
    for result in experiment.executor.fit(_tasks(experiment, checkpoint)):
        if isinstance(result, Exception):
            raise result
        measured[result.client_id] = result.preferences
    payload = experiment.server.global_payload(checkpoint.server_state)
    layers: list[str] = []
    server_tv: list[float] = []
    if payload is not None:
        worker.module.receive(payload, None)
        found = worker.preferences(worker.module)
        layers, server_tv = short_names(found.layers), [total_variance(v) for v in found.vectors]
    name, names = experiment.info.name, experiment.data.dataset.classes
    return Inspection(name, checkpoint.round_idx, align(measured), layers, server_tv, names)


def _open(run_dir: Path, round_idx: int | None, probe: dict[str, Any]) -> "tuple[Experiment, Any]":
    path = run_dir / "config.yaml"
    if not path.exists():
        raise CheckpointError(f"DIR must be a run directory, but {run_dir} has no config.yaml.")
    cfg = OmegaConf.load(path)
    assert isinstance(cfg, DictConfig)
    cfg.diagnostics = {"_target_": "fedfeat.diagnostics.AlignmentProbe", **probe}
    config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    experiment = build_experiment(cfg, config, run_dir)
    folder = experiment.checkpoints
    checkpoint = folder.load_latest() if round_idx is None else folder.load(round_idx)
    if checkpoint is None:
        raise CheckpointError(f"DIR must hold a checkpoint, but {run_dir} has none.")
    return experiment, checkpoint


def _tasks(experiment: "Experiment", checkpoint: Any) -> Any:
    from fedfeat.types import Task

    plan, worker = experiment.plan, experiment.executor.worker
    round_idx = checkpoint.round_idx
    factor = plan.lr_factor(min(round_idx, plan.num_rounds - 1), plan.num_rounds)
    for k in range(plan.num_clients):
        payload = experiment.server.broadcast(checkpoint.server_state, k)
        steps = plan.num_steps(worker.steps_per_epoch(k))
        yield Task(k, round_idx, payload, experiment.store.get(k), steps, factor, probe=True)


def write(found: Sequence[Inspection], out: Path) -> list[Path]:
    """Write the encoding map, the TV curve and the numbers per layer; give the paths."""
    from fedfeat.diagnostics import draw_encodings
    from fedfeat.features.figures import tv_curve
    from fedfeat.figures import save_figure

    paths = [out / "features.csv"]
    rows = [["run", "round", "layer", "agreement", "distance", "clients_tv", "server_tv"]]
    rows += [row for one in found for row in _rows(one)]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    atomic_write_bytes(paths[0], buffer.getvalue().encode())
    aligned = {one.name: one.alignment for one in found if one.alignment is not None}
    if aligned:
        paths.append(out / "encoding_map.png")
        draw_encodings(paths[-1], aligned, found[0].class_names)
    curves = {one.name: one.server_tv for one in found if one.server_tv and one.layers == found[0].layers}
    if curves:
        paths.append(out / "total_variance.png")
        save_figure(tv_curve(found[0].layers, curves), paths[-1])
    return paths


def _rows(one: Inspection) -> list[list[str]]:
    metrics = one.alignment.metrics if one.alignment else {}
    server = dict(zip(one.layers, one.server_tv, strict=True))
    layers = one.alignment.layers if one.alignment else tuple(one.layers)
    return [
        [one.name, str(one.round_idx), layer]
        + [str(metrics.get(f"align/{what}_{layer}", "")) for what in ("agreement", "distance", "tv")]
        + [str(server.get(layer, ""))]
        for layer in layers
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-features``."""
    parser = argparse.ArgumentParser("fedfeat-features", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run directories to compare")
    parser.add_argument("--round", type=int, default=None, help="checkpoint after this round (the newest)")
    parser.add_argument("--images", type=int, default=100, help="training images of each class (%(default)s)")
    parser.add_argument("--pref-at", default="post_act", choices=("post_act", "pre_act"))
    parser.add_argument(
        "--pref-reduce", default="product_then_mean", choices=("product_then_mean", "mean_then_product")
    )
    parser.add_argument("--pref-score", default="logit", choices=("logit", "prob"))
    parser.add_argument("--out", type=Path, default=None, help="where to write (figures/ of the first run)")
    args = parser.parse_args(arguments)
    os.environ["HYDRA_FULL_ERROR"] = "1"
    probe = {
        "images_per_class": args.images, "pref_at": args.pref_at,
        "pref_reduce": args.pref_reduce, "pref_score": args.pref_score,
    }  # fmt: skip
    try:
        found = [inspect(folder, args.round, probe) for folder in args.folders]
        for path in write(found, args.out or args.folders[0] / "figures"):
            print(path)
    except UserError as error:
        print(f"fedfeat-features: {explain(error)}", file=sys.stderr)
        sys.exit(2)
    for one in found:
        metrics = one.alignment.metrics if one.alignment else {}
        print(
            f"{one.name}, round {one.round_idx}: agreement {metrics.get('align/agreement', float('nan')):.3f}"
        )
