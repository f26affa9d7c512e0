"""How fast a client that joins afterwards learns: FedFusion's experiment with a new client (Fig. 4), for any method.

    uv run fedfeat --multirun hydra.sweep.dir=logs/sweeps/joining algorithm=fedavg,fedfusion federation.held_out=1
    uv run python scripts/new_client.py logs/sweeps/joining/*/                  # 60 epochs, as far as that figure goes
    uv run python scripts/new_client.py RUN RUN --epochs 20 --share 0.95 --lr 0.01 --out OUT

With ``federation.held_out=n`` the last n clients of the split take no part in a run. Each of them now receives the
finished run's model and trains alone with the run's client half, optimizer and batch size, at its base learning rate.
Before the first and after every epoch it is scored on its own test part; what counts is how many epochs it needs to
reach a share of the best accuracy that it has within these epochs. A new client of FedFusion has the received
extractor as E_g throughout. Where tensors are personal, a new client starts from their initial values, so that one of
``algorithm=local`` starts from scratch. Where clients lack groups, a new one has the server's whole network.

``new_client.csv`` and ``new_client.png`` go to ``figures/`` of the first run or to ``--out``.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from yaml import YAMLError

from fedfeat.commands.reopen import add_trust, one_sentence, reopen
from fedfeat.config.conditions import integer, interval
from fedfeat.errors import CheckpointError, ConfigError
from fedfeat.files import atomic_write_text
from fedfeat.runs.figures import LINE_STYLES, PALETTE, save_figure
from fedfeat.runs.finished import read_run
from fedfeat.runs.labels import label_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedfeat.rounds.experiment import Experiment

EPOCHS = 60
"""A reading note on Fig. 4 has FedFusion's slowest client there after about as many.

See methods.md#fedfusion-new-clients.
"""
SHARE = 0.99
"""Of the best accuracy, as methods.md#fedfusion-new-clients has it; the paper says "convergence"."""


class Course(NamedTuple):
    """How one new client learned.

    Attributes:
        accuracies: On its test part, before training and after every epoch, (epochs + 1,).
        losses: Mean cross-entropy there, likewise.
    """

    accuracies: np.ndarray
    losses: np.ndarray


Courses = Mapping[str, Mapping[int, Course]]
"""Label of a run and id of a client to what the client's course was."""


def epochs_to_share(accuracies: np.ndarray, share: float) -> int:
    """Count the epochs until accuracies (epochs + 1,), the first before training, reach a share of their best."""
    return int(np.flatnonzero(accuracies >= share * accuracies.max())[0])


def let_join(
    run_dir: Path, epochs: int, lr: float | None = None, trust: Sequence[str] = ()
) -> dict[int, Course]:
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
    newcomers = range(whole.num_clients - held_out, whole.num_clients)
    return {k: _learn(experiment, payload, k, epochs, lr) for k in newcomers}


def _learn(experiment: "Experiment", payload: Any, client_id: int, epochs: int, lr: float | None) -> Course:
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
    task = Task(client_id, experiment.plan.num_rounds, payload, None, num_steps, factor)
    watcher = LambdaCallback(on_train_start=score, on_train_epoch_end=score)
    trainer.callbacks.append(watcher)  # type: ignore[attr-defined]
    try:
        # One fit for all epochs: a second `receive` would make the client's own extractor its E_g.
        worker.fit(task)
    finally:
        trainer.callbacks.remove(watcher)  # type: ignore[attr-defined]
    return Course(*(np.array([scores[name] for scores in found]) for name in ("own/acc", "own/loss")))


def labels_of(run_dirs: Sequence[Path]) -> list[str]:
    """Name finished runs by what tells them apart, and with a number where nothing does.

    Raises:
        CheckpointError: A run is not finished.
    """
    runs = []
    for path in run_dirs:
        try:
            runs.append(read_run(path))
        except (OSError, ValueError, AttributeError, YAMLError) as error:
            raise CheckpointError(
                f"RUN must be the directory of a finished run, but {path} is not: {error}."
            ) from error
    return label_runs(runs)


def rows(courses: Courses) -> list[list[str]]:
    """Give header and rows of ``new_client.csv``: one row per run, client and epoch."""
    table = [["run", "client", "epoch", "accuracy", "loss"]]
    for label, clients in courses.items():
        for client_id, course in clients.items():
            for epoch, (accuracy, loss) in enumerate(zip(*course, strict=True)):
                table.append([label, str(client_id), str(epoch), str(accuracy), str(loss)])
    return table


def summary(courses: Courses, share: float) -> list[list[str]]:
    """Give header and rows of the printed table: means over a run's new clients."""
    table = [["run", "start accuracy", "best accuracy", f"epochs to {share:.4g} of best"]]
    for label, clients in courses.items():
        means = np.mean([(c.accuracies[0], c.accuracies.max()) for c in clients.values()], axis=0)
        table.append([label, *(f"{mean:.4f}" for mean in means), f"{_mean_epochs(clients, share):.4g}"])
    return table


def figure(courses: Courses, share: float) -> "Figure":
    """Draw accuracy over local epochs, one curve per run, with a mark where ``share`` of the best is reached.

    Both are means over the run's new clients.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    drawn = Figure(figsize=(6.4, 3.8 + 0.2 * len(courses)), layout="constrained")
    axes = drawn.subplots()
    for number, (label, clients) in enumerate(courses.items()):
        mean = np.mean([course.accuracies for course in clients.values()], axis=0)
        at, epochs = _mean_epochs(clients, share), np.arange(len(mean))
        color, style = PALETTE[number % len(PALETTE)], LINE_STYLES[number // len(PALETTE) % len(LINE_STYLES)]
        axes.plot(epochs, mean, color=color, linestyle=style, label=f"{label}: {at:.4g} epochs")
        axes.plot(at, np.interp(at, epochs, mean), "o", color=color, markeredgecolor="white", zorder=3)
    axes.set(xlabel="local epochs of the new client", ylabel="accuracy on its test part")
    axes.set_title(f"mark: {share:.4g} of the best accuracy", loc="left", fontsize="medium")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    drawn.legend(loc="outside lower center", fontsize="small", frameon=False)
    return drawn


def _mean_epochs(clients: Mapping[int, Course], share: float) -> float:
    return float(np.mean([epochs_to_share(course.accuracies, share) for course in clients.values()]))


def write(courses: Courses, share: float, out: Path) -> list[Path]:
    """Write the numbers and the picture; give the paths."""
    import pandas as pd

    paths = [out / "new_client.csv", out / "new_client.png"]
    header, *body = rows(courses)
    atomic_write_text(paths[0], pd.DataFrame(body, columns=header, dtype=object).to_csv(index=False))
    save_figure(figure(courses, share), paths[1])
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``scripts/new_client.py``."""
    parser = argparse.ArgumentParser("new_client", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of finished runs")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="local epochs (%(default)s)")
    parser.add_argument("--share", type=float, default=SHARE, help="of the best accuracy (%(default)s)")
    parser.add_argument("--lr", type=float, default=None, help="learning rate (that of the run)")
    parser.add_argument("--out", type=Path, default=None, help="where to write (figures/ of the first run)")
    add_trust(parser)
    args = parser.parse_args(arguments)
    with one_sentence("new_client"):
        for name, rule in {
            "epochs": integer(1),
            "share": interval("(0, 1]"),
            "lr": interval("(0, inf)"),
        }.items():
            value = getattr(args, name)
            if value is not None and not rule.holds(value):
                raise ConfigError.rule(f"--{name}", rule.text, value)
        labels = labels_of(args.runs)
        learned = (let_join(run, args.epochs, args.lr, args.trust) for run in args.runs)
        courses = dict(zip(labels, learned, strict=True))
        paths = write(courses, args.share, args.out or args.runs[0] / "figures")
    header, *body = summary(courses, args.share)
    for line in (header, ["---"] * len(header), *body):
        print(f"| {' | '.join(line)} |")
    for path in paths:
        print(path)
