"""The first notebook: what it shows of a run is what the run has left, and the command line makes the same one."""

import base64

import pytest
from notebook_runs import Stored, data, printed, run_once

pytestmark = pytest.mark.slow

executed = run_once("start")


class TestAsStored(Stored):
    NAME = "start"


def test_the_command_line_made_the_same_run(executed):
    assert printed(executed["same"]).strip() == "the same weights, bit for bit: True"
    accuracy = float(printed(executed["shell"]).partition(":")[2].strip(" ,\n"))
    assert printed(executed["model"]).strip() == f"by hand {accuracy:.6f}, in the table {accuracy:.6f}"


@pytest.mark.parametrize("name", ["split", "curves", "personal", "clients", "pictures"])
def test_the_pictures_are_drawn(name, executed):
    assert base64.b64decode(data(executed[name], "image/png")).startswith(b"\x89PNG")
