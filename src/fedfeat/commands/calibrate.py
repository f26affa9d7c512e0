"""Train the last layer of finished runs again, on virtual features (CCVR, Luo et al. 2021).

Every client would send the moments of its features by class; here they are computed from the run's own split. The runs
themselves stay as they are.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fedfeat.commands.reopen import add_trust, each, readable_runs
from fedfeat.commands.slow_imports import import_slow
from fedfeat.config.command_line import Parser, number, one_sentence
from fedfeat.config.conditions import integer, interval
from fedfeat.files import atomic_write_bytes, atomic_write_json, atomic_write_text
from fedfeat.runs.text import csv_table

if TYPE_CHECKING:
    from fedfeat.commands.calibration import Calibrated, Settings

HEADER = [
    "run",
    "round",
    "acc",
    "acc_calibrated",
    "loss",
    "loss_calibrated",
    "virtual_features",
    "upload_bytes",
]


def rows(found: Sequence["Calibrated"]) -> list[list[str]]:
    """Give header and rows of ``calibration.csv``."""
    values = [
        (one.name, one.round_idx, one.before[0], one.after[0], one.before[1], one.after[1], one.num_virtual,
         one.upload_bytes)
        for one in found
    ]  # fmt: skip
    return [HEADER, *([str(value) for value in row] for row in values)]


def write(found: Sequence["Calibrated"], settings: "Settings", out: Path) -> list[Path]:
    """Write the table, the settings, and the last layer of each run; give the paths."""
    from safetensors.torch import save

    out.mkdir(parents=True, exist_ok=True)
    paths = [out / "calibration.csv", out / "calibration.json"]
    atomic_write_text(paths[0], csv_table(rows(found)))
    record = asdict(settings) | {"training": settings.training._asdict()}
    atomic_write_json(paths[1], record)
    for place, one in enumerate(found, start=1):
        suffix = f"_{place}" if len(found) > 1 else ""
        paths.append(out / f"calibrated_last_layer{suffix}.safetensors")
        atomic_write_bytes(paths[-1], save(one.last_layer))
    return paths


def _parser() -> Parser:
    parser = Parser("fedfeat-calibrate", __doc__)
    parser.add_folders()
    parser.add_argument("--round", type=int, default=None, help="checkpoint after this round (the newest)")
    parser.add_argument(
        "--covariance", choices=("full", "diagonal", "shared"), default="full", help="(%(default)s)"
    )
    parser.add_argument(
        "--per-class",
        type=number(integer(1)),
        default=100,
        help="virtual features of a class, on average (%(default)s)",
    )
    parser.add_argument(
        "--share", choices=("examples", "uniform"), default="examples", help="of a class (%(default)s)"
    )
    parser.add_argument(
        "--clamp", action="store_true", help="virtual features are at least 0, as behind a ReLU"
    )
    parser.add_argument(
        "--epochs", type=number(integer(0)), default=10, help="passes over them (%(default)s)"
    )
    parser.add_argument(
        "--lr", type=number(interval("(0, inf)")), default=0.01, help="learning rate (%(default)s)"
    )
    parser.add_argument("--batch-size", type=number(integer(1)), default=64, help="(%(default)s)")
    parser.add_out(None, "figures/ of the first DIR")
    add_trust(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-calibrate``."""
    args = _parser().read(arguments)
    with one_sentence("fedfeat-calibrate"):
        runs = readable_runs(args.folders)
        import_slow()
        from fedfeat.commands.calibration import Settings, calibrate
        from fedfeat.features.calibration import Retraining

        training = Retraining(args.epochs, args.lr, args.batch_size)
        settings = Settings(args.covariance, args.per_class, args.share, args.clamp, training)
        found = each(runs, args.folders, lambda run: calibrate(run, settings, args.round, args.trust))
        paths = write(found, settings, args.out or args.folders[0] / "figures")
    for path in paths:
        print(path)
    for one in found:
        (acc, loss), (new_acc, new_loss) = one.before, one.after
        print(
            f"{one.name}, round {one.round_idx}: accuracy {acc:.4f} -> {new_acc:.4f}, "
            f"loss {loss:.4f} -> {new_loss:.4f} "
            f"({one.num_virtual} virtual features; a client sends {one.upload_bytes:,} bytes)"
        )


if __name__ == "__main__":
    main()
