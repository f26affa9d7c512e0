"""What both sides of a bundle share: its manifest and parts, and what is known of a machine.

Travels with ``bundle.py``; needs Python's standard library alone.
"""

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FORMAT = 1
BLOCK = 1 << 20


class Refused(Exception):
    """Something that cannot go on; its message is one sentence."""


def normal(name: str) -> str:
    """Give the one way in which a package's name is written."""
    return re.sub(r"[-_.]+", "-", name).lower()


def machine() -> dict[str, Any]:
    """Say what decides which wheels this machine needs: the environment of markers, libc and packages."""
    full = platform.python_version()
    environment = {
        "implementation_name": sys.implementation.name, "implementation_version": full, "os_name": os.name,
        "platform_machine": platform.machine(), "platform_release": platform.release(),
        "platform_python_implementation": platform.python_implementation(), "python_full_version": full,
        "platform_system": platform.system(), "platform_version": platform.version(), "sys_platform": sys.platform,
        "python_version": ".".join(platform.python_version_tuple()[:2]),
    }  # fmt: skip
    packages = {normal(one.metadata["Name"]): one.version for one in importlib.metadata.distributions()}
    return {"environment": environment, "libc": platform.libc_ver(), "packages": packages}


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """Give a manifest with the digest of what stands in it."""
    text = json.dumps(content, sort_keys=True)
    return content | {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a bundle's manifest; one that was altered is refused."""
    try:
        found = json.loads(path.read_bytes())
        whole = signed({key: value for key, value in found.items() if key != "sha256"}) == found
    except FileNotFoundError:
        raise Refused(f"{path} must be there, but it is not: copy it again.") from None
    except (ValueError, AttributeError):
        whole = False
    if not whole:
        raise Refused(f"{path} must be as it was packed, but it is damaged: copy it again.")
    if found["format"] != FORMAT:
        raise Refused(f"{path} must have format {FORMAT}, but it has {found['format']}.")
    return found


def check_part(folder: Path, part: dict[str, Any]) -> None:
    """Refuse a part that is not there or not as it was packed."""
    path, digest = folder / part["name"], hashlib.sha256()
    if not path.is_file():
        raise Refused(f"{path} must be there, but it is not: copy it again.")
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != part["sha256"]:
        size = path.stat().st_size
        how = "damaged" if size == part["size"] else f"{size} bytes of {part['size']}"
        raise Refused(f"{path} must be as it was packed, but it is {how}: copy it again.")


class Parts:
    """A stream into numbered files of a size, whose digests are taken on the way."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size, self._room = folder, size, 0
        self.parts: list[dict[str, Any]] = []

    def write(self, data: bytes) -> int:
        """Write bytes, into as many files as they need."""
        rest = memoryview(data)
        while rest:
            if not self._room:
                self._next()
            block = rest[: self._room]
            self._file.write(block)
            self._digest.update(block)
            self._room -= len(block)
            rest = rest[len(block) :]
        return len(data)

    def close(self) -> None:
        """Note the last part."""
        if self.parts:
            self._file.flush()
            os.fsync(self._file.fileno())
            self.parts[-1] |= {"size": self._file.tell(), "sha256": self._digest.hexdigest()}
            self._file.close()

    def _next(self) -> None:
        self.close()
        name = f"part-{len(self.parts) + 1:03}"
        self._file, self._digest, self._room = (self._folder / name).open("wb"), hashlib.sha256(), self._size
        self.parts.append({"name": name})


class Joined:
    """The parts as one stream."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._waiting, self._file = list(paths), io.BytesIO()

    def read(self, size: int) -> bytes:
        """Read some bytes, at most so many; none at the end."""
        while not (block := self._file.read(size)) and self._waiting:
            self.close()
            self._file = self._waiting.pop(0).open("rb")
        return block

    def close(self) -> None:
        """Close the part that is being read."""
        self._file.close()


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    fresh = path.with_name(f".{path.name}.tmp")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def call(command: Sequence[str | Path], rule: str) -> str:
    """Run a command and give what it printed; where it fails, its last line is part of the refusal."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()
        raise Refused(f"{rule}, but it failed: {lines[-1].strip()}")
    return done.stdout
