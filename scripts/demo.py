"""Fed2, FedAvg and FedProx between the two bounds on real digits, 10 clients with 3 classes each: `make demo`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "logs" / "sweeps" / "demo"
OUT = ROOT / "logs" / "demo"


def main() -> None:
    """Run the sweep (finished runs are skipped), then its report."""
    run = [sys.executable, "-m", "fedfeat", "--multirun", "experiment=digits_10x3"]
    subprocess.run([*run, "trainer=cpu", f"hydra.sweep.dir={RUNS}"], cwd=ROOT, check=True)
    subprocess.run(
        [sys.executable, "-m", "fedfeat.commands.report", str(RUNS), "--out", str(OUT)], cwd=ROOT, check=True
    )
    print(f"\nCurves: {OUT / 'curves_round.png'}\nRuns:   {RUNS}")


if __name__ == "__main__":
    main()
