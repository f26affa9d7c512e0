"""Speed and memory against the number of clients at once."""

from collections.abc import Iterator
from functools import partial
from statistics import median

from gpu.measuring import begin_peak, peak_mib, repeated, step_of
from gpu.parts import Case, Options, Row
from gpu.stacked import FORMS, StackedStep, captured

SIZES = (1, 3, 10, 30, 100)


def cases(options: Options) -> Iterator[Case]:
    """Yield each size, in two forms, with a graph where there is one."""
    for count in SIZES[: 2 if options.small else None]:
        for form in ("grouped", "bmm"):
            yield Case(f"{count} x 10, {form}", partial(size_row, options, count, form))


def size_row(options: Options, count: int, form: str) -> Row:
    """Time steps of so many clients."""
    begin_peak(options.device)
    stacked = StackedStep(count, 10, options.device, (FORMS[form], FORMS[form]))
    row: Row = {}
    steps = {"": stacked}
    stacked()
    if options.device == "cuda":
        steps[", graph"] = captured(stacked)
    for name, work in steps.items():
        step = step_of(options.device, work)
        step()
        seconds = median(repeated(step, 0.7, at_most=2 if options.small else 200))
        row |= {f"ms/step{name}": 1e3 * seconds, f"images/s{name}": 10 * count / seconds}
    return row | {"peak MiB": peak_mib(options.device)}
