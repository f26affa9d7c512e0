"""Who may import whom: the layers of pyproject.toml are kept by `make lint`; here is what they do not say."""

import ast
import gc
import subprocess
import sys
from pathlib import Path

import pytest

from fedfeat.commands.slow_imports import collector_off, import_slow

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedfeat"


def module_name(path):
    """``fedfeat.data.examples`` for a file of the package."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Every module that a file imports anywhere: at the top, in a function, for type checking."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in inner if is_module(name)} or {node.module or ""}
    return found


def is_module(name):
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def within(name, package):
    return name == package or name.startswith(f"{package}.")


FILES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def importers(*packages):
    """The files of the package that import one of the packages."""
    return {
        name for name, path in FILES.items() if any(within(i, p) for i in imports(path) for p in packages)
    }


def ours(*packages):
    """What modules of the given packages import of ours."""
    names = [name for name in FILES if any(within(name, package) for package in packages)]
    return {i for name in names for i in imports(FILES[name]) if within(i, "fedfeat")}


def test_only_the_entry_and_its_commands_see_hydra():
    seeing = importers("hydra", "omegaconf", "hydra_plugins")
    allowed = ("fedfeat.train", "fedfeat.commands", "fedfeat.config")
    assert "fedfeat.train" in seeing
    assert all(any(within(name, room) for room in allowed) for name in seeing), seeing


def test_only_its_logger_and_its_command_see_wandb():
    assert importers("wandb") == {"fedfeat.loggers.wandb_run", "fedfeat.commands.wandb_command"}
    views = {"fedfeat.commands.wandb_panels", "fedfeat.commands.wandb_views"}
    assert importers("wandb_workspaces") == views | {"fedfeat.commands.wandb_command"}
    behind = {*views, "fedfeat.commands.wandb_command", "fedfeat.commands.wandb_tables"}
    assert importers(*behind, "fedfeat.loggers.wandb_run") <= behind


def test_only_its_executor_sees_ray():
    assert importers("ray")
    assert all(within(name, "fedfeat.executors.on_ray") for name in importers("ray"))


def test_nothing_of_the_configuration_imports_torch():
    heavy = {"torch", "pytorch_lightning", "numpy"}
    for name in FILES:
        if within(name, "fedfeat.config"):
            assert not {i.partition(".")[0] for i in imports(FILES[name])} & heavy, name


def test_pure_parts_know_only_values():
    values = {"fedfeat.types", "fedfeat.errors", "fedfeat.seeding"}
    inside = {f"fedfeat.params.{name}" for name in ("mean", "rows", "tensors")}
    assert ours("fedfeat.params", "fedfeat.tree") <= values | inside
    known = {*values, *inside, "fedfeat.config.conditions", "fedfeat.params"}
    assert all(i in known or within(i, "fedfeat.models") for i in ours("fedfeat.models"))
    pure = (
        "fedfeat.data.partition.index_sets",
        "fedfeat.data.partition.parts",
        "fedfeat.data.partition.tables",
    )
    assert ours(*pure) <= {*values, *pure}
    assert ours("fedfeat.types", "fedfeat.errors", "fedfeat.seeding") <= values


def roots_after(code):
    """Run code in a process of its own and give the packages that it has imported."""
    shown = f"{code}\nimport sys\nprint('@', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.rpartition("@")[2].split()), done.stderr


SLOW = {
    "torch",
    "pytorch_lightning",
    "torchmetrics",
    "torchvision",
    "matplotlib",
    "pandas",
    "scipy",
    "sklearn",
}
ONLY_SOME_RUNS = {"optuna", "wandb", "tensorboard", "mlflow", "comet_ml", "ray", "transformers", "submitit"}


@pytest.mark.parametrize(
    "module",
    [
        "fedfeat.train",
        *(f"fedfeat.commands.{name}" for name in ("report", "calibrate", "tune", "watch", "wandb_command")),
    ],
)
def test_commands_begin_without_what_is_slow(module):
    roots, _ = roots_after(f"import fedfeat, {module}")
    assert not roots & (SLOW | ONLY_SOME_RUNS), module


def test_a_plain_run_imports_what_it_needs_without_the_collector(tmp_path):
    """Figures need pandas, after the last round; matplotlib, scipy and torchvision are there by torchmetrics.

    The split is made here, for the root is new.
    """
    run = f"""
import gc
from contextlib import ExitStack
import fedfeat
overrides = ["algorithm=fedavg", "federation.num_rounds=1", "hydra.run.dir={tmp_path}/run", "paths.root={tmp_path}"]
experiment = fedfeat.build(overrides)
with ExitStack() as stack:
    experiment.run(stack)
assert gc.isenabled()
assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()
"""
    roots, printed = roots_after(run)
    assert "pytorch_lightning" in roots
    assert roots & (ONLY_SOME_RUNS | {"pandas", "sklearn"}) == set()
    assert "leaked" not in printed


def test_the_collector_is_on_again():
    with collector_off():
        assert not gc.isenabled()
    assert gc.isenabled()
    with collector_off():
        import_slow()  # all of it is here already
        assert gc.isenabled()
    assert gc.isenabled()


def test_scripts_are_thin():
    """They may see Hydra and train, but hold no logic that the package lacks."""
    for path in (ROOT / "scripts").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 250, path
