"""What one checkpoint says about its neurons: read from what it holds, trained again only where that is asked for."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from fedfeat.commands.client_models import become_server, client_modules, holds_own_models
from fedfeat.commands.look import MOST_MODELS, Asked, Look, Pictures, label_of
from fedfeat.commands.reopen import read_config, reopen
from fedfeat.errors import UserError
from fedfeat.features.diagnostics import Alignment, AlignmentProbe, align, short_names
from fedfeat.features.preference import Preferences, total_variance
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.rounds.experiment import Experiment
from fedfeat.runs.checkpoint import Checkpoint
from fedfeat.runs.feature_numbers import SERVER, read_alignment

_PROBE = {"_target_": "fedfeat.features.diagnostics.AlignmentProbe"}


class Inspection(NamedTuple):
    """What was found in one run.

    Attributes:
        name: Name of the run.
        round_idx: Rounds that the checkpoint has behind it.
        clients: Where the clients' classes come from, in words; empty where there are none.
        note: What was not looked at, and what would show it, as a clause about the run; empty where everything was.
        probe: How class preferences were taken.
        alignment: Of the clients; None where fewer than two are known.
        models: ``server`` and ``client <id>`` to class preferences, of the models that were read.
        layers: Short names of the server's layers, the last one included; empty where it has no model.
        server_tv: Total variance of each of them.
        num_shared: How many of them stand in front of the first that is split into groups; None without groups.
        class_names: Names of the classes.
        bars: Path of a layer to the neurons asked for.
        maximised: Path of a layer to its neurons asked for, and model to their pictures.
    """

    name: str
    round_idx: int
    clients: str
    note: str
    probe: AlignmentProbe
    alignment: Alignment | None
    models: dict[str, Preferences]
    layers: list[str]
    server_tv: list[float]
    num_shared: int | None
    class_names: tuple[str, ...]
    bars: dict[str, list[int]]
    maximised: dict[str, tuple[list[int], dict[str, Pictures]]]

    @property
    def server(self) -> Preferences | None:
        """Class preferences of the server's model; None where the method has none."""
        return self.models.get(SERVER)


def inspect(
    run_dir: Path,
    round_idx: int | None = None,
    trust: Sequence[str] = (),
    *,
    refit: bool = False,
    asked: Asked | None = None,
    **probe: Any,
) -> Inspection:
    """Look at the neurons of a run, whose directory stays as it is.

    Clients are read from the checkpoint where it holds models of theirs; else what the run has measured itself is
    taken (``diagnostics=alignment``). With ``refit`` every client trains once more, as in the round that would follow.

    Args:
        run_dir: Directory of the run.
        round_idx: Which checkpoint; None is the newest.
        trust: See `commands.reopen.reopen`.
        refit: Whether clients train.
        asked: What else is looked at.
        probe: Arguments of `features.diagnostics.AlignmentProbe`, such as ``images_per_class``; those not given are
            the run's own, or the defaults.

    Raises:
        UserError: There is no run, no such checkpoint, layer, neuron or client; or a fit failed.
    """
    # All that the run names is checked here, before some of it is handed on.
    measured = read_config(run_dir, trust)[1]["diagnostics"] or {}
    experiment, checkpoint = reopen(run_dir, round_idx, trust, diagnostics={**_PROBE, **measured, **probe})
    experiment.store.restore(checkpoint.manifest)
    has_server = become_server(experiment, checkpoint)
    look = Look(experiment, asked or Asked())
    path = run_dir / "figures" / f"encoding_round_{checkpoint.round_idx:04d}.npz"
    as_measured = measured and all(measured.get(key) == value for key, value in probe.items())
    kind = _kind(experiment, refit, path.exists() and bool(as_measured))
    if has_server:
        look.at(experiment.executor.worker.module)
    alignment = read_alignment(path) if kind == "measured" else None
    if kind in ("refit", "kept"):
        alignment = _clients(experiment, checkpoint, look, refit)
    server = look.models.get(SERVER)
    if server and len(server.layers) < 2:
        raise UserError(
            f"model must have a hidden layer to look at, but that of {run_dir} is all last layer."
        )
    network = experiment.executor.worker.module.model
    return Inspection(
        name=experiment.info.name,
        round_idx=checkpoint.round_idx,
        clients=_WORDS[kind],
        note=_note(experiment, kind, refit, look),
        probe=look.probe,
        alignment=alignment,
        models=look.models,
        layers=short_names(server.layers) if server else [],
        server_tv=[total_variance(v, look.probe.pref_neg) for v in server.vectors] if server else [],
        num_shared=_num_shared(network, server.layers) if server else None,
        class_names=experiment.data.dataset.classes,
        bars=look.bars,
        maximised={layer: (neurons, look.pictures[layer]) for layer, neurons in look.maximised.items()},
    )


_WORDS = {
    "refit": "clients after one more local training",
    "kept": "clients' own models in the checkpoint",
    "measured": "clients as the run measured them after their local training",
    "one": "",
    "none": "",
}


def _kind(experiment: Experiment, refit: bool, is_measured: bool) -> str:
    """Say where the clients' classes come from."""
    if experiment.plan.num_clients < 2:
        return "one"
    if refit:
        return "refit"
    if holds_own_models(experiment):
        return "kept"
    return "measured" if is_measured else "none"


def _note(experiment: Experiment, kind: str, refit: bool, look: Look) -> str:
    """Say what was not looked at, and what would show it, as a clause about the run."""
    single = bool(look.bars or look.maximised)
    count = experiment.plan.num_clients
    more = f"--refit trains each of its {count} clients once more and adds theirs."
    if kind == "one":
        refused = ", so --refit trains nothing" if refit else ""
        return f"it has one client, and nobody to compare it with{refused}."
    if kind == "none":
        return f"its checkpoint holds no models of clients, so the server's alone is drawn; {more}"
    if kind == "measured" and single:
        return f"it kept no models of clients, so --neurons and --maximise show the server's alone; {more}"
    if single and len(look.models) > MOST_MODELS:
        return f"the first {MOST_MODELS} of {len(look.models)} models are drawn; --clients chooses others."
    return ""


def _clients(experiment: Experiment, checkpoint: Checkpoint, look: Look, refit: bool) -> Alignment | None:
    for client_id, module in client_modules(experiment, checkpoint, look.clients, refit):
        look.at(module, client_id)
    found = {client_id: look.models[label_of(client_id)] for client_id in look.clients}
    return align(found, look.probe.pref_neg)


def _num_shared(network: Any, layers: Sequence[str]) -> int | None:
    if not isinstance(network, GroupedNetwork):
        return None
    grouped = tuple(network.group_rows())
    split = (i for i, layer in enumerate(layers) if any(key.startswith(f"{layer}.") for key in grouped))
    return next(split, len(layers))


def settings_of(one: Inspection) -> dict[str, Any]:
    """Give how class preferences were taken, for the written record."""
    return {f.name: getattr(one.probe, f.name) for f in fields(one.probe) if f.name != "every"}
