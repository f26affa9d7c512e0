"""Write JSON schemas of the groups' files, by which editors complete keys and show errors while typing.

    fedfeat-schemas --out .schemas --config-dir src/mine/configs --vscode

They know our options, those of installed packages and those of the folders that are named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedfeat.commands.slow_imports import collector_off
from fedfeat.config.command_line import Parser, one_sentence
from fedfeat.config.schemas.files import associations, documents, is_ours
from fedfeat.config.search_path import CONFIGS, folders
from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_text

SETTINGS = Path(".vscode") / "settings.json"
_KEY = "yaml.schemas"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script ``fedfeat-schemas``."""
    args = _parser().read(arguments)
    with one_sentence("fedfeat-schemas"):
        for line in write(args.out, args.config_dir, vscode=args.vscode):
            print(line)


def write(out: Path, own: Sequence[Path] = (), *, vscode: bool = False) -> list[str]:
    """Write the schemas, and say what was written.

    Args:
        out: Folder for the schemas; those that it has of groups that are gone are removed.
        own: Folders of groups beside ours and those of installed packages.
        vscode: Whether the settings of VS Code in the current folder are to name them for the files below it.

    Raises:
        ConfigError: A folder is none, or the settings cannot be read.
    """
    for folder in own:
        if not folder.is_dir():
            raise ConfigError.rule("--config-dir", "be a folder of groups", str(folder))
    with collector_off():
        texts = documents([*folders(()), *own])
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.json"):
        if old.name not in texts and is_ours(old.read_text(encoding="utf-8")):
            old.unlink()
    for name, text in texts.items():
        atomic_write_text(out / name, text)
    lines = [f"{len(texts)} schemas in {out}"]
    if vscode:
        # Ours where they lie in a checkout that is opened, not in an environment.
        ours = [CONFIGS] if CONFIGS.parent == Path.cwd() else []
        atomic_write_text(SETTINGS, settings(out, [*ours, *own]))
        lines.append(f"named in {SETTINGS}")
    return lines


def settings(out: Path, of: Sequence[Path]) -> str:
    """Give the text of VS Code's settings in the current folder, with the schemas for the files below it.

    Raises:
        ConfigError: The settings that are there are not plain JSON.
    """
    text = SETTINGS.read_text(encoding="utf-8") if SETTINGS.exists() else "{}"
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigError.rule(
            str(SETTINGS), "be JSON without comments to be written anew", "another text"
        ) from None
    here = Path.cwd()
    below = [folder.resolve() for folder in of if folder.resolve().is_relative_to(here)]
    schemas = out.as_posix() if out.is_absolute() else f"./{out.as_posix()}"
    named: dict[str, list[str]] = {}
    for folder in below:
        where = folder.relative_to(here).as_posix()
        for schema, files in associations(folder, where, schemas).items():
            named.setdefault(schema, []).extend(files)
    return json.dumps(found | {_KEY: dict(sorted(named.items()))}, indent=2, ensure_ascii=False) + "\n"


def _parser() -> Parser:
    parser = Parser("fedfeat-schemas", __doc__)
    parser.add_out(Path(".schemas"), "%(default)s")
    parser.add_argument(
        *("--config-dir", "-cd"),
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of groups of your own; may be given again",
    )
    parser.add_argument(
        "--vscode", action="store_true", help="name them in .vscode/settings.json of this folder"
    )
    return parser


if __name__ == "__main__":
    main()
