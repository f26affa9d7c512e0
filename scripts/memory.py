"""Peak memory against the number of clients and rounds.

    uv run python scripts/memory.py              # clients without a state of their own
    uv run python scripts/memory.py personal     # 100 to 10,000 clients with heads (FedRep) or networks (FedHeNN)
    uv run python scripts/memory.py networks     # 500 clients with a network of 1.2 MB each, in 64 MiB
    uv run python scripts/memory.py kernels      # 50 and 500 with one of .5 to 13 MB, and the kernels of all, in 64 MiB

Every case is a process of its own with the same amount of data in all. The 200 rounds are read at four points. Clients
with a state of their own hold it in ``federation.ram_budget_mb`` and on disk; it is read whole at the first and at the
last round, where all of them are tested, and "kernels of all" reads it in every round but the first. In ``kernels``
that is every round, and the widest representation has 98 times as many numbers as its kernel.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NUM_EXAMPLES = 40_000
CASES = ("stateless", "personal", "networks", "kernels")
CLIENTS = (100, 1000, 10_000)
BUDGET_MB, LARGE_BUDGET_MB = 8, 64

_CHILD = """
import resource, sys
from contextlib import ExitStack
import fedfeat
from fedfeat.loggers.base import RoundLogger
*overrides, every = sys.argv[1:]
experiment = fedfeat.build(overrides)
store, clients = experiment.store, experiment.info.run_dir / "clients"
class Watcher(RoundLogger):
    def log(self, record):
        if record.round_idx and record.round_idx % int(every) == 0:
            with open("/proc/self/statm") as file:
                resident = int(file.read().split()[1]) * resource.getpagesize() / 2**20
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            files = [path.stat().st_size for path in clients.glob("*.safetensors")]
            held, disk = store.num_bytes / 2**20, sum(files) / 2**20
            print("@", record.round_idx, resident, peak, len(store), held, disk, len(files), flush=True)
experiment.loggers = [*experiment.loggers, Watcher()]
with ExitStack() as stack:
    experiment.run(stack)
"""


class Reading(NamedTuple):
    """Memory after a round.

    Attributes:
        round_idx: Finished rounds.
        resident: MiB of the process.
        peak: The most of it so far.
        states: Clients that have a state of their own.
        held: MiB of these states in RAM.
        disk: MiB of them on disk; the versions of two checkpoints, so some clients count twice.
        files: Their number.
    """

    round_idx: int
    resident: float
    peak: float
    states: int
    held: float
    disk: float
    files: int


COMMON = (
    "data=synthetic",
    "partition=iid",
    "federation.local_epochs=null",
    "federation.local_steps=1",
    "trainer=cpu",
    "executor=serial",
)
SMALL = (
    "data.loader.shape=[1,8,8]",
    f"data.loader.num_train={NUM_EXAMPLES}",
    "model=mlp",
    "federation.cohort_size=50",
)
STATELESS = (*SMALL, "algorithm=fedavg", "data.loader.num_test=1000")
OWN = (*SMALL, f"federation.ram_budget_mb={BUDGET_MB}", "data.loader.num_test=100")
HETERO = (
    *OWN,
    "algorithm=fedhenn_hetero",
    "algorithm.server.rad_size=64",
    "algorithm.client.rad_batch=null",
)
ARMS = {
    "FedRep": (*OWN, "algorithm=fedrep", "algorithm.client.head_epochs=1"),
    "FedHeNN, kernels of participants": (*HETERO, "algorithm.server.kbar_over=participants"),
    "FedHeNN, kernels of all": HETERO,
}
LARGE = (
    "data.loader.shape=[3,32,32]",
    "data.loader.num_train=10000",
    "data.loader.num_test=100",
    "algorithm.client.rad_batch=null",
    "federation.cohort_size=50",
    f"federation.ram_budget_mb={LARGE_BUDGET_MB}",
)
NETWORKS = (*LARGE, "model=fedrep_cnn10", "algorithm=fedhenn", "algorithm.server.rad_size=64")
KERNELS = (
    *LARGE,
    "model=hetero_cnn",
    "arm=fedhenn_hetero_cnn",
    "algorithm.server.kbar_over=all",
    "algorithm.server.eta_schedule=const",
    "algorithm.server.rad_size=128",
)


def measure(settings: Sequence[str], num_rounds: int, every: int) -> list[Reading]:
    """Read the memory of one run in a process of its own.

    Args:
        settings: Overrides.
        num_rounds: Rounds of the run.
        every: Rounds between two readings.
    """
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            *COMMON,
            *settings,
            f"federation.num_rounds={num_rounds}",
            f"federation.eval_every={num_rounds}",
            f"paths.root={folder}",
            f"hydra.run.dir={folder}/run",
        ]
        command = [sys.executable, "-c", _CHILD, *overrides, str(every)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    lines = (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("@ "))
    return [
        Reading(int(at), float(now), float(peak), int(states), float(held), float(disk), int(files))
        for at, now, peak, states, held, disk, files in lines
    ]


def print_stateless() -> None:
    """Print peaks by clients, and memory by rounds, of clients that keep nothing."""
    print("| clients | peak MiB |\n|---|---|")
    peaks = {k: measure([*STATELESS, f"federation.num_clients={k}"], 10, 10)[-1].peak for k in CLIENTS}
    for clients, peak in peaks.items():
        print(f"| {clients} | {peak:.0f} ({100 * (peak / peaks[100] - 1):+.1f} %) |")
    print("\n| round | resident MiB | peak MiB |\n|---|---|---|")
    for reading in measure([*STATELESS, "federation.num_clients=100"], 200, 50):
        print(f"| {reading.round_idx} | {reading.resident:.0f} | {reading.peak:.0f} |")


def print_readings(name: str, clients: int, readings: Sequence[Reading]) -> None:
    """Print a row for each reading of a run whose clients keep a state."""
    for at, resident, peak, states, held, disk, files in readings:
        print(
            f"| {name} | {clients} | {at} | {resident:.0f} | {peak:.0f} | {states} | {held:.1f} | "
            f"{disk:.1f} ({files}) |",
            flush=True,
        )


def print_personal(names: Sequence[str], num_clients: Sequence[int], num_rounds: int, budget: int) -> None:
    """Print the readings of clients with heads or networks of their own, at four points of a run."""
    print_head(budget)
    for name in names:
        for clients in num_clients:
            found = measure([*ARMS[name], f"federation.num_clients={clients}"], num_rounds, num_rounds // 4)
            print_readings(name, clients, found)


def print_large(name: str, settings: Sequence[str], num_clients: Sequence[int], num_rounds: int) -> None:
    """Print the readings of clients with networks of a few MiB each."""
    print_head(LARGE_BUDGET_MB)
    for clients in num_clients:
        found = measure([*settings, f"federation.num_clients={clients}"], num_rounds, num_rounds // 4)
        print_readings(name, clients, found)


def print_head(budget: int) -> None:
    """Print the head of the table of `print_readings`."""
    print(f"federation.ram_budget_mb={budget}\n")
    print("| arm | clients | round | resident MiB | peak MiB | states | of them in RAM, MiB | on disk, MiB |")
    print("|---" * 8 + "|", flush=True)


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="stateless", choices=CASES)
    parser.add_argument(
        "--arms", nargs="+", default=list(ARMS)[:2], metavar="ARM", choices=ARMS, help="of %(choices)s"
    )
    parser.add_argument(
        "--clients", nargs="+", type=int, help="personal: 100 1000 10000, networks: 500, kernels: 50 500"
    )
    parser.add_argument(
        "--rounds", type=int, help="personal: 200, networks: 20, kernels: 8; four of them are read"
    )
    options = parser.parse_args()
    if options.what == "stateless":
        print_stateless()
    elif options.what == "personal":
        print_personal(options.arms, options.clients or CLIENTS, options.rounds or 200, BUDGET_MB)
    elif options.what == "networks":
        print_large("FedHeNN, fedrep_cnn10", NETWORKS, options.clients or (500,), options.rounds or 20)
    else:
        print_large("FedHeNN, hetero_cnn", KERNELS, options.clients or (50, 500), options.rounds or 8)


if __name__ == "__main__":
    main()
