"""Parts as processes with a time budget, and a report that is whole after each of them."""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

from gpu.parts import PARTS, Case, Options, Refused, Row
from gpu.report import write_report

# Of its budget a part begins cases in this share of it only; one that is too slow is killed when all of it is spent.
_BEGIN = 0.85


def allotted(left: float, shares: Sequence[float]) -> float:
    """Give the seconds of the first of the parts that are still to run, of what is left for all of them."""
    return max(left, 0.0) * shares[0] / sum(shares)


def run_report(options: Options, names: Sequence[str], seconds: float, script: Path) -> int:
    """Run the parts one after the other and give the status: 1 where one failed, or weights differ.

    Raises:
        Refused: The folder holds the report of other options.
    """
    names = [name for name in PARTS if name in names]
    _check_same(options)
    began, notes = time.monotonic(), {}
    for place, name in enumerate(names):
        shares = [PARTS[one].share for one in names[place:]]
        budget = allotted(seconds - (time.monotonic() - began), shares)
        notes[name] = run_part(name, options, budget, script)
        write_report(options, notes, {one: rows_of(options, one) for one in PARTS})
        rows = rows_of(options, name)
        short = len([row for row in rows if "error" in row or "left out" in row])
        said = notes[name] or f"{len(rows) - short} of {len(rows)} rows"
        print(f"{name}: {said} ({time.monotonic() - began:.0f} s so far)", flush=True)
    rows = [row for name in names for row in rows_of(options, name)]
    failed = any("error" in row or row.get("agrees") is False for row in rows)
    return int(failed or any(notes.values()))


def _check_same(options: Options) -> None:
    path, mine = options.out / "options.json", json.dumps(options.kind())
    options.out.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_text() != mine:
        rule = "--out must be a new folder or that of a report of the same device, size and commit"
        raise Refused(f"{rule}, but {options.out} has {path.read_text()} and this is {mine}.")
    path.write_text(mine)


def run_part(name: str, options: Options, budget: float, script: Path) -> str | None:
    """Run a part in a process of its own, and what it starts; give the sentence of what went wrong, if anything did."""
    arguments = [
        "--out",
        str(options.out),
        "--device",
        options.device,
        "--part",
        name,
        "--seconds",
        str(budget),
    ]
    command = [sys.executable, str(script), *arguments, *["--small"] * options.small]
    log = options.out / "logs" / f"{name}.txt"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            status = process.wait(budget)
        except subprocess.TimeoutExpired:
            return f"Ended at the {budget:.0f} s that it had; the rows so far are below."
        finally:
            # Its own processes too, whatever has become of it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"Failed with status {status}: {lines[-1] if lines else 'it said nothing'}" if status else None


def run_cases(name: str, options: Options, budget: float) -> None:
    """Run what is missing of a part in this process and append each row to its file as soon as it is known."""
    began, path = time.monotonic(), _rows_path(options, name)
    done = {row["key"] for row in rows_of(options, name) if "error" not in row and "left out" not in row}
    path.parent.mkdir(parents=True, exist_ok=True)
    missing = (case for case in _cases(name, options) if case.key not in done)
    workers = 1 if PARTS[name].timed else max(min(num_cores() // 2, 6), 1)
    with path.open("a", encoding="utf-8") as file:
        file.write("\n")  # behind the torn line of one that was killed
        for key, row in results(missing, workers, began + _BEGIN * budget):
            file.write(json.dumps({"key": key, **row}) + "\n")
            file.flush()


def results(cases: Iterable[Case], workers: int, deadline: float) -> Iterator[tuple[str, Row]]:
    """Give each case's row, in several processes in no order; none is begun after the deadline (`time.monotonic`)."""
    if workers == 1:
        yield from ((case.key, _found(case, deadline)) for case in cases)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = {pool.submit(_found, case, deadline): case.key for case in cases}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _cases(name: str, options: Options) -> Iterator[Case]:
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("torch.cuda.is_available() says no; --device cpu runs without a GPU.")
    yield from importlib.import_module(f"gpu.{name}").cases(options)


def _found(case: Case, deadline: float) -> Row:
    if time.monotonic() > deadline:
        return {"left out": "the time of this part was spent"}
    try:
        return case.run()
    except Exception as error:
        return {"error": "".join(traceback.format_exception_only(error)).strip().splitlines()[0]}
    finally:
        gc.collect()
        if "torch" in sys.modules:
            from gpu.measuring import plain_backends

            plain_backends()


def rows_of(options: Options, name: str) -> list[Row]:
    """Give the rows that a part has so far, of each case the last one."""
    found: dict[str, Row] = {}
    with suppress(FileNotFoundError):
        for line in _rows_path(options, name).read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                row = json.loads(line)
                found[row["key"]] = row
    return list(found.values())


def num_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rows_path(options: Options, name: str) -> Path:
    return options.out / "rows" / f"{name}.jsonl"
