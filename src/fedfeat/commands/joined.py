"""What clients that joined a run have learned, put side by side: rows, a table and a picture (`joining`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from yaml import YAMLError

from fedfeat.errors import CheckpointError
from fedfeat.files import atomic_write_text
from fedfeat.runs.figures import LINE_STYLES, PALETTE, panels, save_figure, whole_numbers
from fedfeat.runs.finished import Run, read_run
from fedfeat.runs.labels import group_runs, label_runs, label_settings, name_settings
from fedfeat.runs.legend import legend_below
from fedfeat.runs.text import csv_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Learned(NamedTuple):
    """How one new client learned.

    Attributes:
        accuracies: On its test part, before training and after every epoch, (epochs + 1,).
        losses: Mean cross-entropy there, likewise.
    """

    accuracies: np.ndarray
    losses: np.ndarray


Clients = Mapping[int, Learned]
"""Id of each new client of a run to what its course was."""
Courses = Mapping[str, Clients]
"""Label of a run to its new clients."""
Arms = Mapping[str, Sequence[Clients]]
"""Label of runs that differ in their seed alone to the new clients of each."""


def epochs_to_share(accuracies: np.ndarray, share: float) -> int:
    """Count the epochs until accuracies (epochs + 1,), the first before training, reach a share of their best."""
    return int(np.flatnonzero(accuracies >= share * accuracies.max())[0])


def labels_of(run_dirs: Sequence[Path]) -> list[str]:
    """Name finished runs by what tells them apart, and with a number where nothing does.

    Raises:
        CheckpointError: A run is not finished.
    """
    return label_runs([_finished(path) for path in run_dirs])


def arms_of(run_dirs: Sequence[Path], courses: Sequence[Clients]) -> dict[str, list[Clients]]:
    """Put the runs together that differ in their seed alone; those that differ in nothing stay apart."""
    runs = [_finished(path) for path in run_dirs]
    settings = group_runs(runs)
    if any(len({run.summary["seed"] for run in one.runs}) < len(one.runs) for one in settings):
        return {label: [own] for label, own in zip(labels_of(run_dirs), courses, strict=True)}
    of_run = {id(run): own for run, own in zip(runs, courses, strict=True)}
    labels = label_settings(settings, name_settings(settings))
    return {label: [of_run[id(run)] for run in one.runs] for label, one in zip(labels, settings, strict=True)}


def _finished(path: Path) -> Run:
    try:
        return read_run(path)
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise CheckpointError(
            f"RUN must be the directory of a finished run, but {path} has no {missing}."
        ) from error
    except (OSError, ValueError, AttributeError, YAMLError) as error:
        raise CheckpointError(
            f"RUN must be the directory of a finished run, but {path} is not: {error}."
        ) from error


def rows(courses: Courses) -> list[list[str]]:
    """Give header and rows of ``new_client.csv``: one row per run, client and epoch."""
    table = [["run", "client", "epoch", "accuracy", "loss"]]
    for label, clients in courses.items():
        for client_id, course in clients.items():
            for epoch, (accuracy, loss) in enumerate(zip(*course, strict=True)):
                table.append([label, str(client_id), str(epoch), str(accuracy), str(loss)])
    return table


def summary(arms: Arms, share: float) -> list[list[str]]:
    """Give header and rows of the printed table: means over a run's new clients, with their spread over seeds."""
    table = [["run", "start accuracy", "best accuracy", f"epochs to {share:.4g} of best"]]
    for label, runs in arms.items():
        pairs = [[(c.accuracies[0], c.accuracies.max()) for c in own.values()] for own in runs]
        start, best = zip(*(np.mean(own, axis=0) for own in pairs), strict=True)
        epochs = [_mean_epochs(own, share) for own in runs]
        table.append([label, _spread(start, ".4f"), _spread(best, ".4f"), _spread(epochs, ".4g")])
    return table


def _spread(values: Sequence[float], form: str) -> str:
    """Give the mean, and where there are several its standard deviation beside it."""
    mean = f"{np.mean(values):{form}}"
    return f"{mean} +- {np.std(values, ddof=1):{form}}" if len(values) > 1 else mean


def figure(arms: Arms, share: float) -> "Figure":
    """Draw accuracy over local epochs, one curve per arm, with a mark where ``share`` of the best is reached.

    Both are means over the new clients of the arm's runs; a band is as wide as the standard deviation over the runs.
    """
    drawn, (axes,) = panels(title=f"mark: {share:.4g} of the best accuracy")
    for number, (label, runs) in enumerate(arms.items()):
        curves = [np.mean([course.accuracies for course in own.values()], axis=0) for own in runs]
        mean = np.mean(curves, axis=0)
        at, epochs = float(np.mean([_mean_epochs(own, share) for own in runs])), np.arange(len(mean))
        color, style = PALETTE[number % len(PALETTE)], LINE_STYLES[number // len(PALETTE) % len(LINE_STYLES)]
        axes.plot(epochs, mean, color=color, linestyle=style, label=f"{label}: {at:.4g} epochs")
        if len(runs) > 1:
            half = np.std(curves, axis=0, ddof=1)
            axes.fill_between(epochs, mean - half, mean + half, color=color, alpha=0.15, linewidth=0)
        axes.plot(at, np.interp(at, epochs, mean), "o", color=color, markeredgecolor="white", zorder=3)
    axes.set(xlabel="local epochs of the new client", ylabel="accuracy on its test part")
    whole_numbers(axes.xaxis)
    legend_below(drawn, axes.get_legend_handles_labels()[0], columns=1)
    return drawn


def _mean_epochs(clients: Clients, share: float) -> float:
    return float(np.mean([epochs_to_share(course.accuracies, share) for course in clients.values()]))


def write(courses: Courses, arms: Arms, share: float, out: Path) -> list[Path]:
    """Write the numbers and the picture; give the paths."""
    paths = [out / "new_client.csv", out / "new_client.png"]
    atomic_write_text(paths[0], csv_table(rows(courses)))
    save_figure(figure(arms, share), paths[1])
    return paths
