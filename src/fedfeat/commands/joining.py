"""How fast a client that joins afterwards learns: FedFusion's experiment with a new client (Fig. 4), for any method.

    uv run fedfeat --multirun hydra.sweep.dir=logs/sweeps/joining algorithm=fedavg,fedfusion federation.held_out=1
    uv run python scripts/new_client.py logs/sweeps/joining/*/                  # 120 epochs, 99 % of the best
    uv run python scripts/new_client.py RUN RUN --epochs 20 --share 0.95 --lr 0.01 --out OUT

With ``federation.held_out=n`` the last n clients of the split take no part in a run. Each of them now receives the
finished run's model and trains alone with the run's client half, optimizer and batch size, at its base learning rate.
Before the first and after every epoch it is scored on its own test part; what counts is how many epochs it needs to
reach a share of the best accuracy that it has within these epochs. A new client of FedFusion has the received
extractor as E_g throughout. Where tensors are personal, a new client starts from their initial values, so that one of
``algorithm=local`` starts from scratch. Where clients lack groups, a new one has the server's whole network.

``--sweep experiment=fedfusion/ff_c_newclient`` in the place of RUN runs all of that figure first; a RUN may also be a
folder of runs. Runs that differ in their seed alone are one arm, whose mean and standard deviation are given.
``new_client.csv`` and ``new_client.png`` go to ``figures/`` of the first run, of the sweep or to ``--out``.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.commands.joined import Clients, Learned, arms_of, labels_of, summary, write
from fedfeat.commands.reopen import add_trust, reopen, runs_below
from fedfeat.config.command_line import Parser, number, one_sentence
from fedfeat.config.conditions import integer, interval
from fedfeat.config.search_path import override_of, overrides
from fedfeat.errors import CheckpointError, ConfigError
from fedfeat.runs.text import markdown_table

if TYPE_CHECKING:
    from fedfeat.rounds.experiment import Experiment

EPOCHS = 120
"""Twice what a reading note on Fig. 4 gives for FedFusion's conv, which the paper calls the fastest.

See methods/fedfusion.md#new-clients.
"""
SHARE = 0.99
"""Of the best accuracy, as methods/fedfusion.md#new-clients has it; the paper says "convergence"."""


def let_join(run_dir: Path, epochs: int, lr: float | None = None, trust: Sequence[str] = ()) -> Clients:
    """Let every client that a run has left out join it, each from the run's last model.

    Args:
        run_dir: Directory of the run.
        epochs: Local epochs.
        lr: Learning rate; None is the run's base learning rate.
        trust: See `reopen`.

    Raises:
        CheckpointError: There is no run, no checkpoint or nobody to join.
        ConfigError: A client that is to join has no examples.
    """
    from fedfeat.clients.networks import OneNetwork

    experiment, checkpoint = reopen(run_dir, trust=trust)
    held_out = experiment.info.config["federation"].get("held_out", 0)
    if not held_out:
        raise CheckpointError(f"RUN must leave clients out (federation.held_out), but {run_dir} does not.")
    worker, whole = experiment.executor.worker, experiment.data.whole
    # Nobody knew which groups these clients would need.
    worker.data, worker.networks = whole, OneNetwork(worker.networks.build)
    payload = experiment.server.newcomer_payload(checkpoint.server_state)
    if payload is None:
        name = experiment.info.config["algorithm"]["name"]
        raise CheckpointError(
            f"RUN must have something for who joins, but algorithm={name} has nothing for everyone."
        )
    newcomers = range(whole.num_clients - held_out, whole.num_clients)
    return {k: _learn(experiment, payload, k, epochs, lr) for k in newcomers}


def _learn(experiment: "Experiment", payload: Any, client_id: int, epochs: int, lr: float | None) -> Learned:
    from pytorch_lightning.callbacks import LambdaCallback

    from fedfeat.clients.tasks import Task

    worker = experiment.executor.worker
    module, trainer, data = worker.module, worker.lightning, worker.data
    sizes = data.num_examples(client_id), int(data.test_sizes()[client_id])
    if sizes[0] <= worker.drop_singleton or not sizes[1]:
        counts = f"client {client_id}: {sizes[0]} to train on and {sizes[1]} to test on"
        raise ConfigError.rule("federation.held_out", "leave out clients with examples", counts)
    found: list[dict[str, float]] = []

    def score(*_: Any) -> None:
        found.append(worker.own_score(module, client_id))

    factor = 1.0 if lr is None else lr / module.base_lr
    num_steps = epochs * worker.steps_per_epoch(client_id)
    # The address is that of the round that would follow, in which this client has drawn nothing.
    task = Task(client_id, experiment.plan.num_rounds, payload, None, num_steps, factor, final=True)
    watcher = LambdaCallback(on_train_start=score, on_train_epoch_end=score)
    trainer.callbacks.append(watcher)  # type: ignore[attr-defined]
    try:
        # One fit for all epochs: a second `receive` would make the client's own extractor its E_g.
        worker.fit(task)
    finally:
        trainer.callbacks.remove(watcher)  # type: ignore[attr-defined]
    return Learned(*(np.array([scores[name] for scores in found]) for name in ("own/acc", "own/loss")))


def run_sweep(words: Sequence[str]) -> Path:
    """Run ``fedfeat --multirun``; give the folder of the runs.

    Raises:
        CheckpointError: A run has failed; what it said is above.
    """
    key, now = "hydra.sweep.dir", f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    given = [str(one.value()) for one in overrides(words) if one.key_or_group == key]
    folder = Path(
        given[-1] if given else f"{os.environ.get('FEDFEAT_ROOT', '.')}/logs/sweeps/new_client/{now}"
    )
    own = [] if given else [override_of(key, str(folder))]
    done = subprocess.run([sys.executable, "-m", "fedfeat", "--multirun", *words, *own], check=False)
    if done.returncode:
        raise CheckpointError(
            f"--sweep must end well, but fedfeat has ended with the status {done.returncode}."
        )
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``scripts/new_client.py``."""
    parser = Parser("new_client", __doc__)
    parser.add_folders(at_least=0)
    parser.add_argument("--sweep", nargs="+", default=[], metavar="KEY=VALUE", help="run these first")
    parser.add_argument(
        "--epochs", type=number(integer(1)), default=EPOCHS, help="local epochs (%(default)s)"
    )
    parser.add_argument(
        "--share", type=number(interval("(0, 1]")), default=SHARE, help="of the best accuracy (%(default)s)"
    )
    parser.add_argument(
        "--lr", type=number(interval("(0, inf)")), default=None, help="learning rate (that of the run)"
    )
    parser.add_out(None, "figures/ of the first DIR")
    add_trust(parser)
    args = parser.read(arguments)
    with one_sentence("new_client"):
        folders = args.folders or ([run_sweep(args.sweep)] if args.sweep else [])
        if not folders or (args.folders and args.sweep):
            raise ConfigError.rule(
                "DIR", "be given, or --sweep in its place", [str(run) for run in args.folders]
            )
        runs = runs_below(folders)
        labels = labels_of(runs)
        learned = [let_join(run, args.epochs, args.lr, args.trust) for run in runs]
        arms = arms_of(runs, learned)
        out = args.out or folders[0] / "figures"
        paths = write(dict(zip(labels, learned, strict=True)), arms, args.share, out)
    header, *body = summary(arms, args.share)
    print(markdown_table(header, body), end="")
    for path in paths:
        print(path)
