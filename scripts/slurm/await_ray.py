"""Wait until so many nodes have joined the Ray cluster at ``RAY_ADDRESS``; started by ``ray_nodes.sbatch``."""

import sys
import time

PATIENCE_S = 300.0  # a node of a busy cluster reads Ray from a shared disk, which takes a minute


def main(num_nodes: int) -> None:
    """Wait for the nodes.

    Args:
        num_nodes: How many there are to be.
    """
    end = time.monotonic() + PATIENCE_S
    found = 0
    while found < num_nodes:
        if time.monotonic() > end:
            sys.exit(
                f"The Ray cluster must have {num_nodes} nodes, but after {PATIENCE_S:.0f} s it has {found}."
            )
        found = _num_nodes()
        time.sleep(1)
    print(f"Ray has {found} nodes.", flush=True)


def _num_nodes() -> int:
    import ray

    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, TimeoutError):  # the head is not up yet
        return 0
    try:
        return sum(node["Alive"] for node in ray.nodes())
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
