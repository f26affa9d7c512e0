"""Fed2, FedAvg and FedProx between the two bounds on real digits, 10 clients with 3 classes each: `make demo`."""

from pathlib import Path

import fedfeat
from fedfeat.commands import report

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "logs" / "sweeps" / "demo"
OUT = ROOT / "logs" / "demo"
SETTINGS = ("experiment=digits_10x3", "trainer=cpu")
ALGORITHMS = ("fed2", "fedavg", "fedprox", "local", "centralized")


def main() -> None:
    """Run the methods (finished runs are skipped), then report on them."""
    for algorithm in ALGORITHMS:
        places = (f"paths.root={ROOT}", f"hydra.run.dir={RUNS / algorithm}")
        fedfeat.run([*SETTINGS, f"algorithm={algorithm}", *places])
    report.main([str(RUNS), "--out", str(OUT)])
    print(f"\nCurves: {OUT / 'curves_round.png'}\nRuns:   {RUNS}")


if __name__ == "__main__":
    main()
