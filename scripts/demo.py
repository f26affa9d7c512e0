"""Fed2, FedAvg and FedProx between the two bounds on real digits, 10 clients with 3 classes each: `make demo`."""

from collections.abc import Sequence
from pathlib import Path

import fedfeat
from fedfeat.commands import report
from fedfeat.config.command_line import Parser
from fedfeat.config.search_path import override_of

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "logs" / "sweeps" / "demo"
OUT = ROOT / "logs" / "demo"
SETTINGS = (
    "experiment=digits_10x3",
    "trainer=cpu",
    "logger=quiet",
    # Which class each neuron of each client works for, after the local training of the last round.
    "diagnostics=alignment",
    "diagnostics.every=30",
    "diagnostics.images_per_class=50",
)
ALGORITHMS = ("fed2", "fedavg", "fedprox", "local", "centralized")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the methods (finished runs are skipped), then put them on one page."""
    Parser("demo.py", __doc__).read(arguments)
    for number, algorithm in enumerate(ALGORITHMS, 1):
        print(f"{number} of {len(ALGORITHMS)}: algorithm={algorithm}", flush=True)
        places = (override_of("paths.root", str(ROOT)), override_of("hydra.run.dir", str(RUNS / algorithm)))
        fedfeat.run([*SETTINGS, f"algorithm={algorithm}", *places])
    report.main([str(RUNS), "--html", "--out", str(OUT)])
    print(
        f"\nOpen {OUT / 'report.html'}: curves, the split, and which class each neuron of each client works for,"
        f"\nunder FedAvg and under Fed2. Curves alone: {OUT / 'curves_round.png'}. Runs: {RUNS}"
    )


if __name__ == "__main__":
    main()
