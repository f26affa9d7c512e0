"""What needs no network is refused before torch is imported, which takes seconds."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["calibrate", "inspect_features", "joining", "report"])
def test_a_folder_without_a_run_is_refused_before_torch_is_imported(module, tmp_path):
    code = (
        f"import sys; from fedfeat.commands.{module} import main\n"
        f"try: main([{str(tmp_path)!r}])\n"
        "except SystemExit as end: sys.exit(3 if 'torch' in sys.modules else end.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert f" {tmp_path}" in done.stderr
