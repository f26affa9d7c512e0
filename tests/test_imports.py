"""The arrows between modules, read off the syntax trees: who may import whom."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedfeat"
ENTRY_POINTS = ("fedfeat.train", "fedfeat.inspection", "fedfeat.new_client")
ENTRY_PARTS = ("fedfeat.assembly", "fedfeat.choices", "fedfeat.explain", "fedfeat.reopen", "fedfeat.targets")
VALUES = {"fedfeat.types", "fedfeat.errors", "fedfeat.seeding"}


def module_name(path):
    """``fedfeat.data.examples`` for a file of the package, the file's name for a script."""
    if not path.is_relative_to(SOURCE):
        return path.stem
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Every module that a file imports anywhere: at the top, in a function, for type checking."""
    found = set()
    package = module_name(path).split(".")[: None if path.name == "__init__.py" else -1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (base, node.module) if part)
            # ``from fedfeat import tree`` imports fedfeat.tree; ``from fedfeat.tree import clone`` is fedfeat.tree.
            inner = {f"{base}.{alias.name}" for alias in node.names if is_module(f"{base}.{alias.name}")}
            found |= inner or {base}
    return found


def is_module(name):
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def within(name, package):
    return name == package or name.startswith(f"{package}.")


FILES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))


def importers(*packages):
    """The files of the package that import one of the packages."""
    return {
        name for name, path in FILES.items() if any(within(i, p) for i in imports(path) for p in packages)
    }


def ours(name):
    return {found for found in imports(FILES[name]) if within(found, "fedfeat")}


def test_only_the_entry_points_see_hydra():
    """They may have parts in files of their own, which nothing else imports."""
    seeing = importers("hydra", "omegaconf", "hydra_plugins")
    assert "fedfeat.train" in seeing
    assert seeing <= {*ENTRY_POINTS, *ENTRY_PARTS}
    assert importers(*ENTRY_PARTS) <= {*ENTRY_POINTS, *ENTRY_PARTS}


def test_only_its_logger_sees_wandb():
    assert importers("wandb") == {"fedfeat.loggers.wandb_logger"}


def test_only_its_executor_sees_ray():
    assert importers("ray") <= {name for name in FILES if within(name, "fedfeat.executors")}


def test_nothing_but_the_entry_points_imports_train():
    assert importers("fedfeat.train") == {"fedfeat.__main__"}


@pytest.mark.parametrize(
    ("package", "also"),
    [
        ("fedfeat.params", ()),
        ("fedfeat.features", ("fedfeat.features", "fedfeat.models.network", "fedfeat.models.fusion")),
        ("fedfeat.models", ("fedfeat.models",)),
        ("fedfeat.data.partition", ()),
        ("fedfeat.data.partition_parts", ()),
        ("fedfeat.data.partition_tables", ()),
    ],
)
def test_pure_parts_know_only_values(package, also):
    if package.startswith("fedfeat.data"):
        also = ("fedfeat.data.partition_parts", "fedfeat.data.partition_tables")
    names = [name for name in FILES if within(name, package)]
    assert names
    for name in names:
        foreign = {found for found in ours(name) - VALUES if not any(within(found, own) for own in also)}
        assert foreign == set(), f"{name} imports {foreign}"


def test_values_import_nothing_of_ours():
    for name in VALUES:
        assert ours(name) <= VALUES, name


def test_methods_and_clients_know_neither_the_loop_nor_executors_nor_loggers():
    above = (
        "fedfeat.federation",
        "fedfeat.experiment",
        "fedfeat.executors",
        "fedfeat.loggers",
        "fedfeat.worker",
    )
    below = ("fedfeat.algorithms", "fedfeat.client", "fedfeat.server", "fedfeat.data", "fedfeat.models")
    for name in FILES:
        if any(within(name, package) for package in below):
            assert not {i for i in ours(name) if any(within(i, package) for package in above)}, name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import hydra.utils", {"hydra.utils"}),
        ("def f():\n    from omegaconf import OmegaConf", {"omegaconf"}),
        ("from fedfeat import tree", {"fedfeat.tree"}),
        ("from fedfeat.tree import clone", {"fedfeat.tree"}),
        ("from .. import tree", {"fedfeat.tree"}),
        (
            "from . import examples\nfrom .pipeline import x",
            {"fedfeat.data.examples", "fedfeat.data.pipeline"},
        ),
    ],
)
def test_every_form_of_import_is_seen(text, expected, tmp_path, monkeypatch):
    """Read as if the text stood in fedfeat/data/."""
    path = tmp_path / "probe.py"
    path.write_text(text)
    monkeypatch.setitem(globals(), "module_name", lambda _: "fedfeat.data.probe")
    assert imports(path) == expected


def test_scripts_are_thin():
    """They may see Hydra and train, but hold no logic that the package lacks."""
    for path in SCRIPTS:
        assert len(path.read_text().splitlines()) <= 250, path
