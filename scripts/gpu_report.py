"""What a GPU does with this repository, in one report: agreement with the CPU, seconds per round, memory, waits.

    python scripts/gpu_report.py --out gpu-report              # on a machine with a GPU, under 9 minutes
    python scripts/gpu_report.py --out try --device cpu --small    # the same on the CPU, tiny

Needs torch of 2.8 or later and what the package imports; no network. After every part ``report.md`` and ``report.json``
in the folder are written anew. Each part is a process of its own that is ended when its share of the time is spent; one
that fails leaves its sentence. The same command again does what is missing. Ends with status 1 where a part failed or
weights of CPU and GPU differ.
"""

import argparse
import sys
from pathlib import Path

# The package of this checkout, installed or not; processes that are spawned inherit it.
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "src"))

from gpu.parts import PARTS, Options, Refused
from gpu.running import run_cases, run_report


def main(arguments: list[str] | None = None) -> int:
    """Run the report, or one part of it in this process (``--part``)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny settings, to see that everything runs")
    parser.add_argument("--seconds", type=float, default=510.0, help="for all parts together")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART",
                        help=f"of {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    options = Options(given.device, given.small, given.out.resolve())
    if given.part:
        run_cases(given.part, options, given.seconds)
        return 0
    try:
        return run_report(options, given.parts, given.seconds, Path(__file__).resolve())
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
