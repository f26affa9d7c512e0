"""Run notebooks from a fresh start and store what they show in them.

A notebook runs in a folder of its own, so that no run of yesterday is shown as one of today. What is stored holds no
times and no paths of this machine (tests/test_notebooks.py).
"""

import base64
import io
import os
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient
from PIL import Image

from fedfeat.config.command_line import Parser
from fedfeat.errors import ConfigError
from fedfeat.files import atomic_write_text

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
    own = {"JUPYTER_RUNTIME_DIR": str(folder / "runtime"), "IPYTHONDIR": str(folder / "ipython")}
    # Cells of shell find the commands of this environment.
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    where = {"metadata": {"path": str(folder / "notebooks")}}
    # What is printed in one cell is one text, in however many parts it comes.
    said = {"record_timing": False, "coalesce_streams": True}
    with patch.dict(os.environ, own):
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where, **said).execute()
    # The kernel says which Python it was.
    notebook.metadata["language_info"] = {"name": "python"}
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if "image/png" in (data := output.get("data", {})):
            data["image/png"] = base64.b64encode(modest(base64.b64decode(data["image/png"]))).decode()
    return notebook


def modest(png: bytes) -> bytes:
    """Give a picture in 64 colours, a third of the bytes: what is stored is also what a review has to load."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64).save(buffer, format="png", optimize=True)
    return min(png, buffer.getvalue(), key=len)


def main() -> None:
    """Run those named, or all."""
    names = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    parser = Parser("notebooks.py", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (all)")
    asked = parser.read(None).names
    for unknown in sorted({*asked} - {*names}):
        parser.error(str(ConfigError.rule("NAME", f"be one of {', '.join(names)}", unknown, names)))
    for name in asked or names:
        path = NOTEBOOKS / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        atomic_write_text(path, f"{nbformat.writes(notebook)}\n")
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
