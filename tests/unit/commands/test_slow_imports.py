"""What a start imports, asked of processes of their own."""

import subprocess
import sys

START = "import sys; from fedfeat.commands.slow_imports import import_slow; import_slow()"


def said(program):
    done = subprocess.run([sys.executable, "-c", f"{START}; {program}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_start_goes_without_what_no_run_needs():
    names = ("scipy.signal", "scipy.stats", "pandas", "sklearn", "ray", "wandb")
    assert said(f"print([name for name in {names} if name in sys.modules])") == "[]"


def test_scipy_signal_is_itself_for_whoever_asks_for_it_later():
    program = "import scipy; from scipy import signal; print(scipy.signal is signal, len(signal.windows.hamming(3)))"
    assert said(program) == "True 3"


def test_scipy_signal_is_itself_for_whoever_uses_it_during_the_imports():
    program = """
from fedfeat.commands import slow_imports
del sys.modules["pytorch_lightning"]
with slow_imports._signal_when_used():
    import scipy.signal as early
    print(early.hamming, len(early.windows.hamming(3)))
    from scipy.signal import windows
    print(len(windows.hamming(3)))
import scipy.signal
print(scipy.signal.__file__ is not None, "signal" in vars(scipy))
"""
    done = subprocess.run([sys.executable, "-c", START + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["None", "3", "3", "True", "True"]


def test_a_scipy_signal_that_is_there_already_stays():
    program = (
        "import scipy.signal as before; " + START + "; import scipy.signal; print(scipy.signal is before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
