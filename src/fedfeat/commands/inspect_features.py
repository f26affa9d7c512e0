"""``fedfeat-features``: whose neurons learn which classes, from the checkpoint of any run.

Every client trains once from the checkpoint, as in the round that would follow; its class preferences are then
compared with the other clients' neuron by neuron. The run itself stays as it is.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedfeat.commands.reopen import add_trust, one_sentence, reopen
from fedfeat.files import atomic_write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedfeat.clients.tasks import Turns
    from fedfeat.features.diagnostics import Alignment
    from fedfeat.features.preference import Preferences
    from fedfeat.rounds.experiment import Experiment


class Inspection(NamedTuple):
    """What was found in one run.

    Attributes:
        name: Name of the run.
        round_idx: Rounds that the checkpoint has behind it.
        alignment: Of all clients after local training; None with fewer than two clients.
        server: Class preferences of the server's model; None where it has none.
        layers: Short names of its layers, the last one included.
        server_tv: Total variance of each of them.
        num_shared: How many of them stand in front of the first that is split into groups.
        class_names: Names of the classes.
    """

    name: str
    round_idx: int
    alignment: "Alignment | None"
    server: "Preferences | None"
    layers: list[str]
    server_tv: list[float]
    num_shared: int
    class_names: tuple[str, ...]


def inspect(
    run_dir: Path, round_idx: int | None = None, trust: Sequence[str] = (), **probe: Any
) -> Inspection:
    """Compare the clients of a run after one more local training from a checkpoint.

    Args:
        run_dir: Directory of the run.
        round_idx: Which checkpoint; None is the newest.
        trust: See `reopen`.
        probe: Arguments of `features.diagnostics.AlignmentProbe`, such as ``images_per_class``.

    Raises:
        CheckpointError: There is no run or no such checkpoint.
    """
    from fedfeat.executors.base import raise_failures
    from fedfeat.features.diagnostics import align, short_names
    from fedfeat.features.preference import total_variance

    diagnostics = {"_target_": "fedfeat.features.diagnostics.AlignmentProbe", **probe}
    experiment, checkpoint = reopen(run_dir, round_idx, trust, diagnostics=diagnostics)
    experiment.store.restore(checkpoint.manifest)
    worker, measured = experiment.executor.worker, {}
    assert worker.probe is not None
    for result in raise_failures(experiment.executor.map("fit", _turns(experiment, checkpoint))):
        measured[result.client_id] = result.preferences
    payload = experiment.server.global_payload(checkpoint.server_state)
    server = None
    layers: list[str] = []
    server_tv: list[float] = []
    num_shared = 0
    if payload is not None:
        worker.module.receive(payload, None)
        server = worker.preferences(worker.module)
        layers = short_names(server.layers)
        server_tv = [total_variance(v, worker.probe.pref_neg) for v in server.vectors]
        num_shared = _num_shared(worker.module.model, server.layers)
    alignment = align(measured, worker.probe.pref_neg)
    name, classes = experiment.info.name, experiment.data.dataset.classes
    return Inspection(name, checkpoint.round_idx, alignment, server, layers, server_tv, num_shared, classes)


def _num_shared(network: Any, layers: Sequence[str]) -> int:
    from fedfeat.models.grouped import GroupedNetwork

    grouped = tuple(network.group_rows()) if isinstance(network, GroupedNetwork) else ()
    split = (i for i, layer in enumerate(layers) if any(key.startswith(f"{layer}.") for key in grouped))
    return next(split, len(layers))


def _turns(experiment: "Experiment", checkpoint: Any) -> "Turns":
    from fedfeat.clients.tasks import Turns

    plan, data = experiment.plan, experiment.data

    def make(client_id: int) -> Any:
        payload = experiment.server.broadcast(checkpoint.server_state, client_id)
        num_steps = plan.full_steps(data.num_examples(client_id))
        memory = experiment.store.get(client_id)
        return plan.task(checkpoint.round_idx, client_id, num_steps, payload, memory, probe=True)

    return Turns(range(plan.num_clients), make)


def by_name(found: Sequence[Inspection]) -> dict[str, Inspection]:
    """Name the runs, with a number in their order where several have the same name."""
    names = [one.name for one in found]
    return {
        one.name if names.count(one.name) == 1 else f"{one.name} {number}": one
        for number, one in enumerate(found, start=1)
    }


def rows(found: Sequence[Inspection]) -> list[list[str]]:
    """Give header and rows of ``features.csv``: one row per run and layer; what does not exist is empty."""
    table = [["run", "round", "layer", "agreement", "distance", "clients_tv", "server_tv"]]
    for name, one in by_name(found).items():
        metrics = one.alignment.metrics if one.alignment else {}
        server = dict(zip(one.layers, one.server_tv, strict=True))
        for layer in one.layers or (one.alignment.layers if one.alignment else ()):
            values = [metrics.get(f"align/{what}_{layer}", "") for what in ("agreement", "distance", "tv")]
            table.append([name, str(one.round_idx), layer, *map(str, values), str(server.get(layer, ""))])
    return table


def markdown(found: Sequence[Inspection], column: str) -> str:
    """Set runs side by side in a table: one row per layer.

    Args:
        found: The runs.
        column: What to show: ``agreement``, ``distance``, ``clients_tv`` or ``server_tv``.
    """
    header, *body = rows(found)
    names, at = list(by_name(found)), header.index(column)
    values = {(row[2], row[0]): f"{float(row[at]):.3f}" for row in body if row[at]}
    lines = [["layer", *names], ["---"] * (len(names) + 1)]
    layers = dict.fromkeys(layer for layer, _ in values)
    lines += [[layer, *(values.get((layer, name), "") for name in names)] for layer in layers]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def variance_figure(found: Sequence[Inspection]) -> "Figure":
    """Draw TV over the layers of the server's models, of the runs that have the layers of the first such model."""
    from fedfeat.runs.feature_figures import tv_curve

    named = {name: one for name, one in by_name(found).items() if one.layers}
    layers = next(iter(named.values())).layers
    named = {name: one for name, one in named.items() if one.layers == layers}
    curves = {name: one.server_tv for name, one in named.items()}
    return tv_curve(layers, curves, {name: one.num_shared for name, one in named.items()})


def write(found: Sequence[Inspection], out: Path) -> list[Path]:
    """Write the encoding map, the TV curve and the numbers per layer; give the paths."""
    import pandas as pd

    from fedfeat.runs.feature_figures import draw_encodings
    from fedfeat.runs.figures import save_figure

    paths = [out / "features.csv"]
    header, *body = rows(found)
    atomic_write_text(paths[0], pd.DataFrame(body, columns=header, dtype=object).to_csv(index=False))
    aligned = {name: one.alignment for name, one in by_name(found).items() if one.alignment is not None}
    if aligned:
        paths.append(out / "encoding_map.png")
        draw_encodings(paths[-1], aligned, found[0].class_names)
    if any(one.server_tv for one in found):
        # Not total_variance.png, which is the warm-up's of a run with structure.depth=auto.
        paths.append(out / "server_total_variance.png")
        save_figure(variance_figure(found), paths[-1])
    return paths


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
    add_trust(parser)
    args = parser.parse_args(arguments)
    probe = {
        "images_per_class": args.images, "pref_at": args.pref_at,
        "pref_reduce": args.pref_reduce, "pref_score": args.pref_score,
    }  # fmt: skip
    with one_sentence("fedfeat-features"):
        found = [inspect(folder, args.round, args.trust, **probe) for folder in args.folders]
        for path in write(found, args.out or args.folders[0] / "figures"):
            print(path)
    for name, one in by_name(found).items():
        metrics = one.alignment.metrics if one.alignment else {}
        print(f"{name}, round {one.round_idx}: agreement {metrics.get('align/agreement', float('nan')):.3f}")
