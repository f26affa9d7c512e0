"""Peak memory against the number of clients and rounds: `uv run python scripts/memory.py`.

Every case is a process of its own with the same amount of data in all. The 200 rounds are read at three points.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUM_EXAMPLES = 40_000

_CHILD = """
import resource, sys
from fedfeat import federation
from fedfeat.train import main
every = int(sys.argv.pop())
one_round = federation._Loop.one_round
def watched(self, progress):
    result = one_round(self, progress)
    if result[0].round_idx % every == 0:
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * resource.getpagesize() / 2**20
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"@ {result[0].round_idx} {resident:.1f} {peak:.1f}", flush=True)
    return result
federation._Loop.one_round = watched
main()
"""


def measure(num_clients: int, num_rounds: int, every: int) -> list[tuple[int, float, float]]:
    """Rounds with resident and peak memory in MiB, of one run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            "data=synthetic",
            "data.loader.shape=[1,8,8]",
            f"data.loader.num_train={NUM_EXAMPLES}",
            "data.loader.num_test=1000",
            "partition=iid",
            "algorithm=fedavg",
            "model=mlp",
            f"federation.num_clients={num_clients}",
            "federation.cohort_size=50",
            "federation.local_epochs=null",
            "federation.local_steps=1",
            f"federation.num_rounds={num_rounds}",
            f"federation.eval_every={every}",
            "trainer=cpu",
            f"paths.root={folder}",
            f"hydra.run.dir={folder}/run",
        ]
        command = [sys.executable, "-c", _CHILD, *overrides, str(every)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    lines = (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("@ "))
    return [(int(round_idx), float(resident), float(peak)) for round_idx, resident, peak in lines]


def main() -> None:
    """Print both tables."""
    print("| clients | peak MiB |\n|---|---|")
    peaks = {k: measure(k, 10, 10)[-1][2] for k in (100, 1000, 10_000)}
    for clients, peak in peaks.items():
        print(f"| {clients} | {peak:.0f} ({100 * (peak / peaks[100] - 1):+.1f} %) |")
    print("\n| round | resident MiB | peak MiB |\n|---|---|---|")
    for round_idx, resident, peak in measure(100, 200, 50):
        print(f"| {round_idx} | {resident:.0f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
