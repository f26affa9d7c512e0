"""Show whose neurons learn which classes, from the checkpoint of any run.

Every layer's encodings and total variance, and of chosen neurons their class preferences as bars and the pictures
that they answer to most. The run itself stays as it is, and nothing trains without ``--refit``.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfeat.commands.chosen_neurons import parse_neurons, parse_numbers
from fedfeat.commands.reopen import add_trust, each, readable_runs
from fedfeat.commands.slow_imports import import_slow
from fedfeat.config.arguments import check_targets
from fedfeat.config.command_line import Parser, one_sentence
from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_json, atomic_write_text
from fedfeat.runs.text import csv_table, markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedfeat.commands.inspection import Inspection
    from fedfeat.commands.look import Asked

_ASCENT = "fedfeat.features.maximisation.Ascent"


def by_name(found: Sequence["Inspection"]) -> dict[str, "Inspection"]:
    """Name the runs, with a number in their order, or the next that is free, where several have the same name."""
    names = [one.name for one in found]
    named: dict[str, Inspection] = {}
    for number, one in enumerate(found, start=1):
        numbered = (name for at in count(number) if (name := f"{one.name} {at}") not in {*names, *named})
        named[one.name if names.count(one.name) == 1 else next(numbered)] = one
    return named


def rows(found: Sequence["Inspection"]) -> list[list[str]]:
    """Give header and rows of ``features.csv``: one row per run and layer; what does not exist is empty."""
    table = [["run", "round", "layer", "agreement", "distance", "clients_tv", "server_tv", "shared"]]
    for name, one in by_name(found).items():
        metrics = one.alignment.metrics if one.alignment else {}
        server = dict(zip(one.layers, one.server_tv, strict=True))
        for i, layer in enumerate(one.layers or (one.alignment.layers if one.alignment else ())):
            values = [metrics.get(f"align/{what}_{layer}", "") for what in ("agreement", "distance", "tv")]
            shared = "" if one.num_shared is None else str(i < one.num_shared).lower()
            table.append(
                [name, str(one.round_idx), layer, *map(str, values), str(server.get(layer, "")), shared]
            )
    return table


def markdown(found: Sequence["Inspection"], column: str) -> str:
    """Set runs side by side in a table: one row per layer.

    Args:
        found: The runs.
        column: What to show: ``agreement``, ``distance``, ``clients_tv`` or ``server_tv``.
    """
    header, *body = rows(found)
    names, at = list(by_name(found)), header.index(column)
    values = {(row[2], row[0]): f"{float(row[at]):.3f}" for row in body if row[at]}
    layers = dict.fromkeys(layer for layer, _ in values)
    lines = [[layer, *(values.get((layer, name), "") for name in names)] for layer in layers]
    return markdown_table(["layer", *names], lines)


def variance_figure(found: Sequence["Inspection"]) -> "Figure":
    """Draw TV over the layers of the server's models, of the runs that have the layers of the first such model."""
    from fedfeat.runs.feature_figures import tv_curve

    named = {name: one for name, one in by_name(found).items() if one.layers}
    layers = next(iter(named.values())).layers
    named = {name: one for name, one in named.items() if one.layers == layers}
    curves = {name: one.server_tv for name, one in named.items()}
    depths = {name: one.num_shared for name, one in named.items() if one.num_shared is not None}
    return tv_curve(layers, curves, depths, with_output=True)


def write(found: Sequence["Inspection"], out: Path, asked: "Asked | None" = None) -> list[Path]:
    """Write pictures, and beside them the numbers that they are drawn from; give the paths.

    Args:
        found: The runs.
        out: Where to.
        asked: What was asked for, for the record.
    """
    from fedfeat.commands.neuron_files import write_neurons
    from fedfeat.features.diagnostics import server_alone
    from fedfeat.runs.feature_figures import draw_encodings
    from fedfeat.runs.figures import save_figure

    if other := next((one for one in found if one.class_names != found[0].class_names), None):
        rule = "have the same classes, whose colours they share"
        raise ConfigError.rule("DIR", rule, f"{found[0].name} and {other.name} with others")
    paths = [out / "features.csv", out / "features.json"]
    atomic_write_text(paths[0], csv_table(rows(found)))
    atomic_write_json(paths[1], _record(found, asked))
    named = by_name(found)
    encoded = {name: one.alignment for name, one in named.items() if one.alignment is not None}
    alone = {name: one.server for name, one in named.items() if one.server is not None}
    encoded |= {name: server_alone(found) for name, found in alone.items() if name not in encoded}
    if encoded:
        paths += [out / "encoding_map.png", out / "encoding_map.npz"]
        draw_encodings(paths[-2], encoded, found[0].class_names)
    if alone:
        # Not total_variance.png, which is the warm-up's of a run with structure.depth=auto.
        paths.append(out / "server_total_variance.png")
        save_figure(variance_figure(found), paths[-1])
    for name, one in named.items():
        paths += write_neurons(one, out, name if len(found) > 1 else "", asked)
    return paths


def _record(found: Sequence["Inspection"], asked: "Asked | None") -> dict[str, Any]:
    from fedfeat.commands.inspection import settings_of

    runs = {
        name: {"round": one.round_idx, "clients": one.clients or None, "preferences": settings_of(one)}
        for name, one in by_name(found).items()
    }
    made = bool(asked and asked.maximise)
    return {"runs": runs, "maximisation": asdict(asked.ascent) if asked and made else None}


def say(one: "Inspection", name: str) -> str:
    """Say in a line what the clients of a run agree on, or why nothing is known of them."""
    known = ""
    if one.alignment:
        found = one.alignment.metrics.get("align/agreement")
        said = "no neuron of two clients to compare" if found is None else f"agreement {found:.3f}"
        known = f"{said} ({one.clients})"
    parts = [part for part in (known, one.note) if part] or ["one client is looked at, and nobody beside it."]
    return f"{name}, round {one.round_idx}: {'; '.join(parts)}"


def _parser() -> Parser:
    parser = Parser("fedfeat-features", __doc__)
    parser.add_folders()
    parser.add_argument("--round", type=int, default=None, help="checkpoint after this round (the newest)")
    parser.add_argument(
        "--refit", action="store_true", help="train each client once more from the checkpoint"
    )
    parser.add_argument("--clients", metavar="0-4,9", help="whose models are read or trained (all)")
    neurons: dict[str, Any] = {"action": "append", "default": [], "metavar": "LAYER:NEURONS"}
    parser.add_argument("--neurons", **neurons, help="preferences as bars: conv1:3, or conv1:0-3,7,fc1:2")
    parser.add_argument(
        "--maximise", **neurons, help="pictures that raise these neurons' activation; as --neurons"
    )
    parser.add_out(None, "figures/ of the first DIR")
    add_trust(parser)
    group = parser.add_argument_group(
        "class preferences", "where not given as the run measured, else the defaults"
    )
    group.add_argument("--images", type=int, help="training images of each class (100)")
    group.add_argument("--pref-at", choices=("post_act", "pre_act"), help="(post_act)")
    group.add_argument(
        "--pref-reduce", choices=("product_then_mean", "mean_then_product"), help="(product_then_mean)"
    )
    group.add_argument("--pref-score", choices=("logit", "prob"), help="(logit)")
    group = parser.add_argument_group("activation maximisation", "lengths in pixels; white - black is 1")
    group.add_argument("--steps", type=int, default=256, help="steps of gradient ascent (%(default)s)")
    group.add_argument(
        "--lr", type=float, default=0.1, help="size of the first step, root mean square (%(default)s)"
    )
    group.add_argument(
        "--decay", type=float, default=0.05, help="L2 decay to the mean pixel at it (%(default)s)"
    )
    group.add_argument("--blur", type=float, default=0.5, help="standard deviation of a blur (%(default)s)")
    group.add_argument(
        "--blur-every", "--blur_every", type=int, default=4, help="steps between blurs (%(default)s)"
    )
    group.add_argument("--jitter", type=int, default=1, help="largest random shift at a step (%(default)s)")
    group.add_argument("--seed", type=int, default=0, help="of noise and shifts (%(default)s)")
    return parser


def _asked(args: argparse.Namespace) -> "Asked":
    from fedfeat.commands.look import Asked
    from fedfeat.features.maximisation import Ascent

    names = ("steps", "lr", "decay", "blur", "blur_every", "jitter", "seed")
    ascent = {name: getattr(args, name) for name in names}
    check_targets({"_target_": _ASCENT, **ascent}, "--")
    return Asked(
        parse_neurons(args.neurons, "--neurons"),
        parse_neurons(args.maximise, "--maximise"),
        Ascent(**ascent),
        None if args.clients is None else parse_numbers(args.clients, "--clients"),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-features``."""
    args = _parser().read(arguments)
    given = {
        "images_per_class": args.images, "pref_at": args.pref_at,
        "pref_reduce": args.pref_reduce, "pref_score": args.pref_score,
    }  # fmt: skip
    probe = {key: value for key, value in given.items() if value is not None}
    with one_sentence("fedfeat-features"):
        runs = readable_runs(args.folders)
        asked = _asked(args)
        import_slow()
        from fedfeat.commands.inspection import inspect

        look = partial(
            inspect, round_idx=args.round, trust=args.trust, refit=args.refit, asked=asked, **probe
        )
        found = each(runs, args.folders, look)
        for path in write(found, args.out or args.folders[0] / "figures", asked):
            print(path)
    for name, one in by_name(found).items():
        print(say(one, name))


if __name__ == "__main__":
    main()
