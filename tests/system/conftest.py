"""Fixtures of the tests that run the command line."""

import shutil
from pathlib import Path

import pytest

pytest.register_assert_rewrite("refusals")


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """Where the one finished run is kept that every test copies."""
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def finished(cli, small, template, tmp_path) -> Path:
    """A run directory with a finished run of ``small``."""
    if not template.exists():
        assert cli(*small, f"hydra.run.dir={template}").code == 0
    return shutil.copytree(template, tmp_path / "run")


@pytest.fixture
def console(capsys):
    """Run the ``main`` of a console script with some arguments; give exit code, stdout and stderr."""

    def call(main, *arguments):
        capsys.readouterr()
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return call
