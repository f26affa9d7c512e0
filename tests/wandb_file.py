"""Read back what W&B wrote offline."""

import json
import struct
import time
from pathlib import Path

from wandb.proto import wandb_internal_pb2


def read_wandb(path: Path) -> list[wandb_internal_pb2.Record]:
    """Records of a .wandb file: LevelDB's log format after a header of 7 bytes.

    Blocks of 32 KiB hold chunks of CRC (4 bytes), length (2), type (1: full, 2: first, 3: middle, 4: last).
    """
    data = path.read_bytes()
    if not data.startswith(b":W&B"):
        return []  # still being written
    found, at, parts = [], 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        if at + 7 + length > len(data):
            break  # still being written
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            item = wandb_internal_pb2.Record()
            item.ParseFromString(parts)
            found.append(item)
            parts = b""
    return found


def finished_wandb(run_dir: Path, start: int = 0) -> tuple[list[wandb_internal_pb2.Record], int]:
    """Records of one of the offline runs below a run directory, one per start, and its exit code.

    W&B's service process may flush its last records just after `finish` returns.
    """
    path = sorted(run_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_ctime_ns)[
        start
    ]
    deadline = time.monotonic() + 20
    while True:
        found = read_wandb(path)
        for record in found:
            if record.HasField("exit"):
                return found, record.exit.exit_code
        assert time.monotonic() < deadline, "the .wandb file never ended"
        time.sleep(0.05)


def items(entries) -> dict:
    """Keys and values of a history row, a summary or a configuration."""
    return {entry.key or "/".join(entry.nested_key): json.loads(entry.value_json) for entry in entries}


def summary_of(records) -> dict:
    """What a run's summary holds at its end, without W&B's own entries."""
    summary: dict = {}
    for record in records:
        summary.update(items(record.summary.update))
        for entry in record.summary.remove:
            summary.pop(entry.key or "/".join(entry.nested_key), None)
    return {key: value for key, value in summary.items() if not key.startswith("_")}


def history_of(records) -> list[dict]:
    """The rows of a run's history."""
    return [items(record.history.item) for record in records if record.HasField("history")]
