"""The locked wheels that a machine needs and lacks: chosen from uv.lock, downloaded once, checked by their digests."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import bundle_format
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

Package = dict[str, Any]
"""A package of uv.lock."""


@dataclass(frozen=True)
class Target:
    """The machine without a network.

    Attributes:
        environment: Values of the variables of markers.
        platforms: Tags of platforms, the best first.
        packages: Versions of what it has; None where a name was given alone.
    """

    environment: dict[str, str]
    platforms: Sequence[str]
    packages: dict[str, str | None]

    @classmethod
    def read(cls, have: Iterable[str], python: str | None, platforms: Sequence[str]) -> "Target":
        """Read files of ``bundle.py have`` and names of packages; without a file it is as this machine."""
        found, packages = bundle_format.machine(), dict[str, str | None]()
        for one in have:
            if Path(one).is_file():
                found = json.loads(Path(one).read_text())
                packages |= found["packages"]
            else:
                packages[canonicalize_name(one)] = None
        environment = found["environment"]
        if python is not None:
            environment |= {"python_version": python, "python_full_version": f"{python}.0"}
        return cls(
            environment, platforms or manylinux(environment["platform_machine"], found["libc"]), packages
        )

    @property
    def python(self) -> tuple[int, int]:
        """Its Python."""
        major, minor = self.environment["python_version"].split(".")
        return int(major), int(minor)

    def tags(self) -> set[Tag]:
        """Give the tags of wheels that it can install."""
        interpreter = "cp{}{}".format(*self.python)
        return {*cpython_tags(self.python, platforms=self.platforms),
                *compatible_tags(self.python, interpreter, self.platforms)}  # fmt: skip


def manylinux(machine: str, libc: Sequence[str]) -> list[str]:
    """Give the tags of platforms for a Linux with some libc, as ``("glibc", "2.35")``, the newest first."""
    if libc[0] != "glibc":
        raise bundle_format.Refused(
            f"--platform must be given for a machine whose libc is {libc[0] or 'unknown'!r}."
        )
    older = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    found = []
    for minor in range(int(libc[1].split(".")[1]), 4, -1):
        found += [
            f"manylinux_2_{minor}_{machine}",
            *([f"{older[minor]}_{machine}"] if minor in older else []),
        ]
    return [*found, f"linux_{machine}"]


def needed(
    lock: Sequence[Package], direct: Iterable[str], target: Target, extras: Sequence[str]
) -> dict[str, Package | None]:
    """Give by name what runs need there: the locked package, or None where the machine has it.

    What a package that it has needs itself is not followed.

    Args:
        lock: The packages of uv.lock.
        direct: Requirements of fedfeat.
        target: The machine.
        extras: Extras of fedfeat that are wanted there.
    """
    bounds = {canonicalize_name(one.name): one.specifier for one in map(Requirement, direct)}
    found: dict[str, Package | None] = {}
    waiting = list(_edges(_locked(lock, {"name": "fedfeat"}), extras, target.environment))
    while waiting:
        edge = waiting.pop()
        package = _locked(lock, edge)
        name = package["name"]
        if name in found and not edge.get("extra"):
            continue
        found[name] = None if _has(target, package, bounds) else package
        if found[name] is not None:
            waiting += _edges(package, edge.get("extra", ()), target.environment)
    return found


def _has(target: Target, package: Package, bounds: dict[str, Any]) -> bool:
    """Whether a machine has a package: by name alone, in the locked version, or in one that fedfeat's bounds allow."""
    name = package["name"]
    if name not in target.packages:
        return False
    version = target.packages[name]
    return version in (None, package["version"]) or (name in bounds and bounds[name].contains(version))


def _locked(lock: Sequence[Package], edge: dict[str, Any]) -> Package:
    return next(one for one in lock
                if one["name"] == edge["name"] and edge.get("version", one["version"]) == one["version"])  # fmt: skip


def _edges(package: Package, extras: Iterable[str], environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    optional = package.get("optional-dependencies", {})
    for edge in (*package.get("dependencies", ()), *(edge for extra in extras for edge in optional[extra])):
        if "marker" not in edge or Marker(edge["marker"]).evaluate(environment):
            yield edge


def wheels(packages: Sequence[Package], target: Target, cache: Path) -> list[Path]:
    """Give the wheels of packages, from the cache or downloaded into it."""
    cache.mkdir(parents=True, exist_ok=True)
    tags = target.tags()
    lacking = [one for one in packages if _cached(one, tags, cache) is None]
    if lacking:
        _download([one for one in lacking if one.get("wheels")], target, cache)
        _build([one for one in lacking if not one.get("wheels")], cache)
    found = {one["name"]: _cached(one, tags, cache) for one in packages}
    for one in packages:
        if found[one["name"]] is None:
            raise bundle_format.Refused(
                f"{one['name']} {one['version']} must have a wheel for {target.platforms[0]} and Python "
                f"{target.environment['python_version']}, but uv.lock and its source give none."
            )
    return [path for path in found.values() if path is not None]


def _cached(package: Package, tags: set[Tag], cache: Path) -> Path | None:
    """Find a wheel in the cache that fits, is of that version and has the digest of the lock, where that has wheels."""
    locked = {one["url"].rpartition("/")[2]: one["hash"] for one in package.get("wheels", ())}
    for path in sorted(cache.glob("*.whl")):
        name, version, _, of = parse_wheel_filename(path.name)
        if (name, str(version)) != (package["name"], package["version"]) or not of & tags:
            continue
        if not locked or locked.get(path.name) == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}":
            return path
    return None


def _download(packages: Sequence[Package], target: Target, cache: Path) -> None:
    places = [word for one in target.platforms for word in ("--platform", one)]
    options = [
        "--only-binary=:all:",
        "--implementation",
        "cp",
        *places,
        "--python-version",
        ".".join(map(str, target.python)),
    ]
    _pip(["download", *options, "--dest"], packages, "wheels", cache)


def _build(packages: Sequence[Package], cache: Path) -> None:
    """Build what has no wheel; only one that is of no platform is taken later."""
    _pip(["wheel", "--wheel-dir"], packages, "sdist", cache)


def _pip(words: Sequence[str], packages: Sequence[Package], kind: str, cache: Path) -> None:
    """Have pip put wheels into a folder from which those that are whole are moved."""
    if not packages:
        return
    lines = []
    for one in packages:
        files = one["wheels"] if kind == "wheels" else [one["sdist"]]
        lines.append(
            " ".join([f"{one['name']}=={one['version']}", *(f"--hash={file['hash']}" for file in files)])
        )
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        asked = Path(folder, "asked.txt")
        asked.write_text("\n".join(lines))
        command = [*pip(), *words, folder, "--no-deps", "--require-hashes", "--quiet", "-r", str(asked)]
        bundle_format.call(
            command, f"{', '.join(one['name'] for one in packages)} must be fetched from the package index"
        )
        for path in Path(folder).glob("*.whl"):
            path.replace(cache / path.name)


def pip() -> list[str]:
    """Give the command of a pip: this environment's, else one that uv fetches."""
    # Not importlib.util.find_spec: asked for pip, setuptools' finder gives distutils back to the standard library.
    if PathFinder.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    private = Path(__file__).resolve().parents[1] / ".uv" / "bin" / "uv"
    uv = os.environ.get("UV") or shutil.which("uv") or (str(private) if private.exists() else None)
    if uv is None:
        raise bundle_format.Refused("pip or uv must be there to download wheels, but neither is.")
    return [uv, "tool", "run", "pip"]
