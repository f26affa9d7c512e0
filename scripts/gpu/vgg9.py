"""Training steps of vgg9, dense and in Fed2's groups, at batch 64."""

from collections.abc import Iterator
from functools import partial
from statistics import median

import torch
from grouped_speed import CASES
from timing import LAYOUTS, PRECISIONS, Setting, training_step

from fedfeat.models.flops import training_flops
from fedfeat.models.network import Network
from gpu.measuring import begin_peak, peak_mib, repeated
from gpu.parts import Case, Options, Row


def cases(options: Options) -> Iterator[Case]:
    """Yield a layout and a precision at a time, in which the dense and the grouped networks alternate."""
    networks = CASES["vgg9"].networks(["slice", "dense"])
    batch = 4 if options.small else 64
    for layout in list(LAYOUTS)[: 1 if options.small else None]:
        for precision in PRECISIONS:
            where = Setting(torch.device(options.device), layout, precision)
            found: dict[str, float] = {}
            for form, network in networks.items():
                name = f"{form}, {layout} {precision}"
                yield Case(name, partial(_row, where, form, network, batch, found, networks["dense"]))


def _row(
    where: Setting, form: str, network: Network, batch: int, found: dict[str, float], dense: Network
) -> Row:
    device = where.device.type
    begin_peak(device)
    step = training_step(where, network, batch)
    step()
    found[form] = median(repeated(step, 1.0, at_most=3 if device == "cpu" else 100))
    row = {"ms/step": 1e3 * found[form], "images/s": batch / found[form], "peak MiB": peak_mib(device)}
    flops = training_flops(network) / training_flops(dense)
    return row | (
        {"time over dense": found[form] / found["dense"], "FLOPs over dense": flops}
        if "dense" in found
        else {}
    )
