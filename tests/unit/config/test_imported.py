"""Objects by their names."""

import pytest

from fedfeat.config.imports import imported


def test_hydra_prints_nothing_of_its_own(capfd):
    assert imported("builtins.dict") is dict
    with pytest.raises(Exception, match="nowhere"):
        imported("nowhere.at.all")
    assert capfd.readouterr().err == ""
