"""Take fedfeat to machines without a network, in files of a chosen size.

A bundle holds code, wheels, data sets and, with ``--run``, a run.

    python bundle.py have > have.json               # there: what it has
    python scripts/bundle.py pack --out BUNDLE --have have.json --data cifar10
    python BUNDLE/bundle.py unpack FOLDER           # there
    python FOLDER/bundle.py run FOLDER [overrides]  # there, as often as wanted

All but ``pack`` needs Python's standard library alone. See docs/air-gapped.md.
"""

import argparse
import fcntl
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tarfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bundle_format import Joined, Refused, call, check_part, machine, read_manifest, write_text


def check_machine(manifest: dict[str, Any]) -> None:
    """Refuse a machine for which the wheels were not chosen, or that lacks what was not packed."""
    here, wanted = machine(), manifest["environment"]
    for key in ("python_version", "platform_machine", "sys_platform"):
        found = here["environment"][key]
        if manifest["wheels"] and found != wanted[key]:
            raise Refused(f"{key} must be {wanted[key]}, as the bundle's wheels need, but it is {found}.")
    for name, version in manifest["needs"].items():
        if version is None and name not in here["packages"]:
            raise Refused(
                f"{name} must be on this machine, for it was not packed, but {sys.executable} lacks it."
            )


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait for others that unpack into the same folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def extract(parts: Path, manifest: dict[str, Any], into: Path) -> None:
    """Make the folder with all that was packed, completely or not at all."""
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise Refused(
            f"{into} must be a new or empty folder, or one of this bundle, but it holds something else."
        )
    for part in manifest["parts"]:
        check_part(parts, part)
    fresh = into.with_name(f".{into.name}.unpack.tmp")
    shutil.rmtree(fresh, ignore_errors=True)  # of an unpacking that was killed
    paths = [parts / part["name"] for part in manifest["parts"]]
    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.0 to 3.11.3 have none
    with closing(Joined(paths)) as joined, tarfile.open(fileobj=joined, mode="r|bz2") as archive:
        archive.extractall(fresh, **safe)
    write_text(fresh / "manifest.json", json.dumps(manifest, indent=1))
    os.sync()  # a folder that has its name has its files, whatever happens then
    fresh.replace(into)


def install(into: Path, manifest: dict[str, Any]) -> None:
    """Make an environment of the packed wheels in front of the packages of the Python that runs this."""
    missing = [name for name in manifest["wheels"] if not (into / "wheels" / name).is_file()]
    if missing:
        raise Refused(
            f"{into / 'wheels' / missing[0]} must be there, but it is not: unpack into a new folder."
        )
    place, uv = into / ".venv", shutil.which("uv")
    if manifest["wheels"] and uv is None and importlib.util.find_spec("ensurepip") is None:
        raise Refused("uv or Python's ensurepip must be there to install wheels, but neither is.")
    needs_pip = bool(manifest["wheels"]) and uv is None
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=needs_pip).create(place)
    python = place / "bin" / "python"
    wheels = [into / "wheels" / name for name in manifest["wheels"]]
    options = ["--no-index", "--no-deps", "--find-links", into / "wheels", *wheels]
    tool: list[str | Path] = [python, "-m", "pip", "install"]
    if uv is not None:
        tool = [uv, "pip", "install", "--offline", "--no-cache", "--python", python]
    if wheels:
        call([*tool, *options], "The wheels must install")
    # A .pth in a folder that such a line names does not count, such as that of a checkout of fedfeat.
    behind = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    packages = place / "lib" / f"python{machine()['environment']['python_version']}" / "site-packages"
    write_text(packages / "bundle.pth", "\n".join([str(into / "code" / "src"), *behind, ""]))
    check_packages(python, manifest["needs"])
    write_commands(into / "code" / "pyproject.toml", python)


def write_commands(project: Path, python: Path) -> None:
    """Put the console commands of a project beside a Python."""
    for name, function in tomllib.loads(project.read_text())["project"]["scripts"].items():
        module, _, entry = function.partition(":")
        script = python.with_name(name)
        # For the shell and for Python at once: a line of #! ends at the first space of a path.
        begin = f"#!/bin/sh\n'''exec' {shlex.quote(str(python))} \"$0\" \"$@\"\n' '''\n"
        write_text(script, f"{begin}from {module} import {entry}\n\n{entry}()\n")
        script.chmod(0o755)


def check_packages(python: Path, needs: dict[str, str | None]) -> None:
    """Refuse an environment that has not the packed versions."""
    program = "import json, bundle_format; print(json.dumps(bundle_format.machine()['packages']))"
    start = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parent)!r}); {program}"
    found = json.loads(call([python, "-c", start], "The environment must start"))
    for name, version in needs.items():
        if version not in (None, found.get(name)):
            raise Refused(
                f"{name} must be {version}, as it was packed, but it is {found.get(name, 'not there')}."
            )


def unpack(parts: Path, into: Path) -> None:
    """Verify, join, extract and install; what is done already is left as it is."""
    manifest = read_manifest(parts / "manifest.json")
    with alone(into):
        mark, there = into / ".installed", into / "manifest.json"
        extracted = there.is_file() and read_manifest(there) == manifest
        if extracted and mark.is_file() and mark.read_text() == manifest["sha256"]:
            print(f"{into} holds this bundle already.")
            return
        check_machine(manifest)
        if not extracted:
            extract(parts, manifest, into)
        install(into, manifest)
        write_text(mark, manifest["sha256"])
    print(f"{into} is ready: {sys.executable} {into / 'bundle.py'} run {into} [overrides]")


def run(into: Path, overrides: Sequence[str]) -> None:
    """Become a run of fedfeat: the packed one where there is one, else of the overrides alone."""
    if not (into / ".installed").is_file():
        raise Refused(f"{into} must be an unpacked bundle, but it is not: unpack into it first.")
    words = read_manifest(into / "manifest.json")["run"]
    if words is not None and not any(word.startswith("hydra.run.dir=") for word in overrides):
        # By the variable, for a folder's name may hold signs of Hydra's grammar.
        overrides = [*words, "hydra.run.dir=${oc.env:FEDFEAT_ROOT}/run", *overrides]
    places = {"FEDFEAT_ROOT": str(into)} | (
        {"FEDFEAT_DATA": str(into / "data")} if (into / "data").is_dir() else {}
    )
    python = str(into / ".venv" / "bin" / "python")
    os.execve(python, [python, "-m", "fedfeat", *overrides], os.environ | places)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; a refusal is one sentence, with exit code 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("have", help="print what this machine has")
    commands.add_parser("pack", help="make a bundle (--help for more)", add_help=False)
    one = commands.add_parser("unpack", help="verify, join and install a bundle")
    one.add_argument("into", type=Path)
    one.add_argument(
        "--parts", type=Path, default=Path(__file__).parent, help="folder of the parts (this one)"
    )
    one = commands.add_parser("run", help="start fedfeat, or go on with the packed run")
    one.add_argument("into", type=Path)
    options, rest = parser.parse_known_args(argv)
    if rest and options.command not in ("pack", "run"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        if options.command == "have":
            print(json.dumps(machine(), indent=1))
        elif options.command == "pack":
            from bundle_pack import main as pack

            pack(rest)
        elif options.command == "unpack":
            unpack(options.parts.absolute(), options.into.absolute())
        else:
            run(options.into.absolute(), rest)
    except Refused as error:
        print(f"bundle: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
