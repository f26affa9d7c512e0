"""Make the pages of docs/api again: signatures and docstrings of what authors of methods, networks and notebooks call.

`make docs` does so, and builds the site; with ``--check`` it ends with 1 where a page would change. They are read
from the source by griffe, so nothing is imported. Names with an underscore in front are left out.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from griffe import Alias, Class, Docstring, DocstringSectionKind, Function, Module, Object, load

from fedfeat.config.command_line import Parser
from fedfeat.files import atomic_write_text

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "docs/api"
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "methods": ("Halves of a method", ("client", "models.counted", "server", "types", "seeding", "errors")),
    "arithmetic": (
        "Weights and trees of tensors",
        ("params.tensors", "params.rows", "params.mean", "tree", "features.simplex"),
    ),
    "networks": (
        "Networks",
        ("models.network", "models.shapes", "models.blocks", "models.policy", "models.frozen", "models.twin",
         "models.fusion", "models.grouped", "models.softmax_scope"),
    ),
    "features": (
        "Measures of features",
        ("features.preference", "features.alignment", "features.kernels", "features.cka", "features.prototypes",
         "features.matching", "features.calibration"),
    ),
    "data": ("Data", ("data.examples", "data.batches", "data.federated", "data.transforms")),
    "keys": ("Keys of a configuration", ("config.conditions",)),
    "rounds": ("Rounds", ("rounds.loop", "rounds.experiment", "rounds.samplers", "executors.base")),
    "python": (
        "Runs from Python",
        ("commands.python", "commands.loading", "commands.loaded_model", "runs.finished", "runs.quantities"),
    ),
}  # fmt: skip
"""Title and modules by page."""
_TITLES = {
    DocstringSectionKind.parameters: "Arguments",
    DocstringSectionKind.attributes: "Attributes",
    DocstringSectionKind.returns: "Returns",
    DocstringSectionKind.yields: "Yields",
    DocstringSectionKind.raises: "Raises",
}


def pages(source: Path) -> dict[str, str]:
    """Write every page; by its path below the checkout."""
    package = load("fedfeat", search_paths=[source])
    assert isinstance(package, Module)
    return {
        f"{FOLDER}/{name}.md": "\n".join([f"# {title}", "", *_modules(package, modules)]).rstrip() + "\n"
        for name, (title, modules) in PAGES.items()
    }


def _modules(package: Module, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        module = package[name]
        yield from (f"## fedfeat.{name}", "", *_docstring(module.docstring))
        place = name.rpartition(".")[2]
        for one in _public(module):
            yield from _entry(one, one.name, place)
            if isinstance(one, Class):
                for inner in _public(one):
                    yield from _entry(inner, f"{one.name}.{inner.name}", place)


def _public(owner: Object | Alias) -> Iterator[Object]:
    """Go through what an owner defines itself and says something about."""
    for name, one in owner.members.items():
        if not one.is_alias and name[0] != "_" and isinstance(one, Object) and one.docstring:
            yield one


def _entry(one: Object, name: str, place: str) -> Iterator[str]:
    kind = "class " if isinstance(one, Class) else ""
    yield from (
        f"### {place}.{name}",  # with the module, for anchors do not tell `Run` from `run`
        "",
        "```python",
        kind + _signature(one, name),
        "```",
        "",
        *_docstring(one.docstring),
    )


def _signature(one: Object, name: str) -> str:
    if isinstance(one, Function) and "property" not in one.labels:
        return f"{name}({_arguments(one)})" + (f" -> {one.returns}" if one.returns else "")
    if isinstance(one, Class):
        init = one.members.get("__init__")
        bases = f"  # {', '.join(map(str, one.bases))}" if one.bases else ""
        return f"{name}({_arguments(init)}){bases}" if isinstance(init, Function) else f"{name}{bases}"
    found = getattr(one, "annotation", None) or getattr(one, "returns", None)
    return f"{name}: {found}" if found else name


def _arguments(function: Function) -> str:
    texts, last = [], ""
    for one in function.parameters:
        kind = one.kind.value if one.kind else ""
        if one.name in ("self", "cls"):
            continue
        if kind == "keyword-only" and last not in ("keyword-only", "variadic positional"):
            texts.append("*")
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        text = f"{stars}{one.name}" + (f": {one.annotation}" if one.annotation else "")
        texts.append(text + (f" = {one.default}" if one.default is not None and not stars else ""))
        last = kind
    return ", ".join(texts)


def _docstring(docstring: Docstring | None) -> Iterator[str]:
    """Give the lines of a docstring; lists of its sections have their names in code."""
    for section in docstring.parse("google") if docstring else ():
        title = _TITLES.get(section.kind)
        if title is None:
            yield from (str(section.value), "")
            continue
        yield from (f"**{title}**", "")
        for item in section.value:
            words = " ".join(item.description.split())
            label = getattr(item, "name", "") or (
                str(item.annotation) if section.kind is DocstringSectionKind.raises else ""
            )
            yield f"- `{label}`: {words}" if label else f"- {words}"
        yield ""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = Parser("api_pages.py", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and name what would change")
    options = parser.read(argv)
    changed = False
    for name, text in pages(ROOT / "src").items():
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        changed = True
        print(f"{name} {'would change' if options.check else 'written'}")
        if not options.check:
            atomic_write_text(path, text)
    sys.exit(1 if options.check and changed else 0)


if __name__ == "__main__":
    main()
