"""A picture of who holds what: examples per client, and of each class per client."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedfeat.files import atomic_write_bytes

# Above this many cells numbers in the heat map would touch each other.
MOST_NUMBERS = 250
MOST_CLASS_NAMES = 25


def draw_split(run_dir: Path, counts: np.ndarray, classes: Sequence[str]) -> dict[str, Path]:
    """Draw what the clients of a run train on into its directory; give the picture's name and path.

    Args:
        run_dir: Directory of the run.
        counts: See `class_picture`.
        classes: See `class_picture`.
    """
    path = run_dir / "figures" / "split.png"
    atomic_write_bytes(path, class_picture(counts, classes))
    return {"split": path}


def class_picture(counts: np.ndarray, classes: Sequence[str]) -> bytes:
    """Draw a heat map of class counts under a profile of client sizes.

    Args:
        counts: Examples per client and class, (K, C).
        classes: Class names, C of them.

    Returns:
        A PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    num_clients, num_classes = counts.shape
    width = float(np.clip(2.5 + 0.42 * num_clients, 5.5, 12))
    height = 1.9 + 0.27 * float(np.clip(num_classes, 4, MOST_CLASS_NAMES))
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 3), width_ratios=(60, 1))
    below = figure.add_subplot(grid[1, 0])
    above = figure.add_subplot(grid[0, 0], sharex=below)
    edges = np.arange(num_clients + 1) - 0.5
    above.stairs(counts.sum(axis=1), edges, fill=True, color="#4c6e91")
    above.set_ylabel("examples")
    above.set_ylim(bottom=0)
    above.tick_params(labelbottom=False)
    above.spines[["top", "right"]].set_visible(False)
    above.set_title(f"{counts.sum():,} training examples of {num_clients} client{'s' * (num_clients > 1)}")
    # Masked cells stay white, so that "none" differs from "few".
    shown = np.ma.masked_equal(counts.T, 0)
    image = below.imshow(shown, aspect="auto", cmap="YlGnBu", vmin=0, interpolation="nearest")
    below.set(xlabel="client", ylabel="class", xlim=(-0.5, num_clients - 0.5))
    below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if num_classes <= MOST_CLASS_NAMES:
        below.set_yticks(range(num_classes), [name[:16] for name in classes], parse_math=False)
    figure.colorbar(image, cax=figure.add_subplot(grid[1, 1]), label="examples")
    if counts.size <= MOST_NUMBERS:
        for client_id, label in zip(*np.nonzero(counts), strict=True):
            dark = counts[client_id, label] > 0.55 * counts.max()
            number = below.text(client_id, label, str(counts[client_id, label]), ha="center", va="center")
            number.set(color="white" if dark else "black", fontsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
