"""The command ``bundle.py pack``: everything for a machine without a network, in parts of a chosen size."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import bundle_format
import bundle_wheels
from bundle_format import Parts, Refused

from fedfeat.data.packed import SUFFIX, write_packed
from fedfeat.data.torchvision_sets import SOURCES, named
from fedfeat.errors import UserError
from fedfeat.files import read_yaml, remove_leftovers, scratch_folder
from fedfeat.runs.directory import locked, stored_config
from fedfeat.runs.provenance import git_commit
from fedfeat.runs.weight_files import check_same_weights, files

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "uv.lock"
# Beside the parts, and in what is made of them.
THERE = [ROOT / "scripts" / name for name in ("bundle.py", "bundle_format.py")]
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
# Of a packed run, words about places of the machine that made it.
ELSEWHERE = re.compile(
    r"[+~]*(paths|hydra)[./@]|[+~]*\w+\.(root|cache_dir)=|[+~]*\w+\.loader\.(root|cache_dir)="
)


def size_of(text: str) -> int:
    """Read a size as ``100M``: bytes, or thousands, millions or thousand millions of them."""
    match = re.fullmatch(r"([1-9]\d*)([KMG]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"it must be a size such as 100M, but it is {text!r}")
    return int(match[1]) * UNITS[match[2]]


def code(root: Path) -> Iterator[tuple[str, Path]]:
    """Go through the tracked files of the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).exists():
            yield f"code/{name}", root / name


def data(names: Sequence[str], root: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Go through data sets: known ones in packed form, made in a folder, others as they lie below the root."""
    for name in names:
        if name in SOURCES:
            path = scratch / f"{name}{SUFFIX}"
            if not (root / path.name).is_file():
                write_packed(path, named(name, root, download=False))  # type: ignore[arg-type]
            else:
                path = root / path.name
            yield f"data/{path.name}", path
        else:
            if not (root / name).exists():
                known = ", ".join(SOURCES)
                raise Refused(f"--data must be one of {known} or lie in {root}, but {name!r} is neither.")
            yield f"data/{name}", root / name


def run_files(run: Path) -> Iterator[tuple[str, Path]]:
    """Go through the files of a run directory; its lock and what killed processes left are not among them."""
    for path in sorted(run.rglob("*")):
        if path.is_file() and path.name != ".lock" and not path.name.endswith(".tmp"):
            yield f"run/{path.relative_to(run)}", path


def run_words(run: Path) -> list[str]:
    """Give the overrides that a run was started with, but for those about places."""
    path = run / ".hydra" / "overrides.yaml"
    if not path.is_file():
        raise Refused(f"--run must be the directory of a run, but {run} has no .hydra/overrides.yaml.")
    return [word for word in read_yaml(path) if not ELSEWHERE.match(word)]


def begun(run: Path) -> tuple[list[str], dict[str, Path]]:
    """Give what a run is gone on with: its overrides, and its files of weights by their keys."""
    words = run_words(run)
    if not (run / "config.yaml").is_file():
        raise Refused(f"--run must be the directory of a run, but {run} has no config.yaml.")
    config = stored_config(run)
    check_same_weights(run, config)
    weights = files(config)
    return [*words, *(f"++{key}=${{oc.env:FEDFEAT_ROOT}}/weights/{key}" for key in weights)], weights


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Take the user who packed out of an entry."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def pack(options: argparse.Namespace) -> None:
    """Make the folder of a bundle, completely or not at all."""
    out: Path = options.out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refused(f"--out must be a new or empty folder, but {out} holds something.")
    target = bundle_wheels.Target.read(options.have, options.python, options.platform)
    lock = tomllib.loads(LOCK.read_text())["package"]
    direct = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed = bundle_wheels.needed(lock, direct, target, options.extra)
    lacking = [package for package in needed.values() if package is not None]
    words, weights = (None, {}) if options.run is None else begun(options.run)
    wheels = bundle_wheels.wheels(lacking, target, options.wheels)
    out.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(out.parent)
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder(out.parent, out.name))
        (scratch / "COMMIT").write_text(f"{git_commit()}\n")
        entries = [
            *((path.name, path) for path in THERE),
            *code(ROOT),
            ("code/COMMIT", scratch / "COMMIT"),
        ]
        entries += [(f"wheels/{path.name}", path) for path in wheels]
        entries += data(options.data, options.data_root.expanduser(), scratch)
        if options.run is not None:
            stack.enter_context(locked(options.run, key="--run"))
            entries += run_files(options.run)
            entries += [(f"weights/{key}", path) for key, path in weights.items()]
        folder = scratch / "bundle"
        folder.mkdir()
        parts = Parts(folder, options.part_size)
        with tarfile.open(fileobj=parts, mode="w|bz2", dereference=True) as archive:  # type: ignore[call-overload]
            for name, path in entries:
                archive.add(path, name, filter=plain)
        parts.close()
        manifest = {
            "format": bundle_format.FORMAT, "commit": git_commit(), "environment": target.environment, "run": words,
            "wheels": [path.name for path in wheels], "parts": parts.parts,
            "needs": {name: package and package["version"] for name, package in needed.items()},
        }  # fmt: skip
        bundle_format.write_text(
            folder / "manifest.json", json.dumps(bundle_format.signed(manifest), indent=1)
        )
        for path in THERE:
            shutil.copy(path, folder)
        os.replace(folder, out)
    megabytes = sum(one["size"] for one in parts.parts) / 1e6
    print(f"{out}: {len(parts.parts)} parts, {megabytes:.1f} MB, {len(wheels)} wheels.")


def main(argv: Sequence[str]) -> None:
    """Run the command; a refusal is one sentence, with exit code 2."""
    parser = argparse.ArgumentParser(prog="bundle.py pack", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the bundle's folder, new or empty")
    add("--part-size", type=size_of, default=size_of("100M"), help="largest size of a part (100M)")
    add(
        "--have",
        action="append",
        default=[],
        help="a file of `bundle.py have`, or a package that is there already",
    )
    add("--extra", action="append", default=[], help="extra of fedfeat that is wanted there: slurm, ray, ...")
    add("--python", help="Python there, as 3.12 (that of --have FILE, else of this machine)")
    add(
        "--platform",
        action="append",
        default=[],
        help="tag of its platform, as manylinux_2_28_x86_64 (likewise)",
    )
    add(
        "--wheels",
        type=Path,
        default=ROOT / "logs" / "cache" / "wheels",
        help="where downloaded wheels are kept",
    )
    add(
        "--data", action="append", default=[], help=f"{', '.join(SOURCES)}, or what lies in the data's folder"
    )
    add("--data-root", type=Path, default=Path(os.environ.get("FEDFEAT_DATA", "data")), help="that folder")
    add("--run", type=Path, help="directory of a run to go on with")
    try:
        pack(parser.parse_args(argv))
    except (UserError, Refused) as error:
        print(f"bundle: {error}", file=sys.stderr)
        sys.exit(2)
