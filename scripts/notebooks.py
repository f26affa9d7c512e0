"""Run the notebooks from a fresh start and store what they show in them: ``python scripts/notebooks.py [NAME ...]``.

A notebook runs in a folder of its own, so that no run of yesterday is shown as one of today. What is stored holds no
times and no paths of this machine (tests/test_notebooks.py).
"""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"
READ = ("docs", "results")
"""What notebooks read of the repository."""


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Give a notebook with the outputs of its code.

    Args:
        path: The notebook, which stays as it is.
        folder: An empty folder in which it runs as it would in the repository.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    (folder / "notebooks").mkdir()
    for name in READ:
        (folder / name).symlink_to(ROOT / name)
    for name, part in {"JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython"}.items():
        os.environ[name] = str(folder / part)
    # Cells of shell find the commands of this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    where = {"metadata": {"path": str(folder / "notebooks")}}
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources=where, record_timing=False
    ).execute()
    # The kernel says which Python it was.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """Run those named, or all."""
    names = sys.argv[1:] or sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    for name in names:
        path = NOTEBOOKS / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
