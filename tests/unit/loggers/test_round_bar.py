"""The bar in terminals of several widths: what it keeps, and what Ctrl-C leaves of it."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.console import Console

from fedfeat.loggers.round_bar import RoundBar

METRICS = ("acc 0.8312", "personal 0.9123", "loss 0.1234", "comm 12.3 MB", "0.476 s/round")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
IN_A_TERMINAL = f"""
import fcntl, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C is for this process
from rich.console import Console
from fedfeat.loggers.round_bar import RoundBar
bar = RoundBar(500, 0, Console())
with bar:
    bar.show(12, {METRICS!r})
    bar.refresh()
    time.sleep(60)
"""


def drawn(width):
    """The last frame of a bar after 100 and 12 more of 500 rounds of a minute."""
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    bar = RoundBar(500, 100, out)
    now = 0.0
    bar.get_time = lambda: now
    for round_idx in range(101, 113):
        now += 60
        bar.show(round_idx, METRICS)
    with out.capture() as frame:
        out.print(bar.get_renderable())
    return frame.get().rstrip("\n")


@pytest.mark.parametrize(("width", "shown"), [(60, 1), (80, 2), (120, 5)])
def test_it_keeps_count_total_and_time_and_whole_metrics(width, shown):
    line = drawn(width)
    assert "\n" not in line
    assert line.startswith("round 112/500 ")
    assert " 6:28:00 left " in line  # also where a round takes longer than Rich remembers by default
    assert line.rstrip().endswith("left " + "  ".join(METRICS[:shown]))
    assert len(line) <= width - 3


@pytest.mark.parametrize("width", [60, 80, 120])
def test_after_ctrl_c_the_line_stands_once(width):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        env={**variables, "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(theirs)
    text, told, since = "", False, time.monotonic()
    while time.monotonic() - since < 30:
        try:
            text += os.read(ours, 4096).decode(errors="ignore")
        except OSError:  # the other end is closed
            break
        if not told and "12/500" in text:
            told = bool(os.write(ours, b"\x03"))
    process.wait(timeout=30)
    os.close(ours)
    (echoed,) = [line for line in ESCAPES.sub("", text).split("\r") if "^C" in line]
    assert len(echoed) <= width  # else the echo begins a new line, and the bar is drawn there again
