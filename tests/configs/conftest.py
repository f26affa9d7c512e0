"""Every configuration is composed by a fresh Hydra that writes below a temporary folder."""

import pytest
from hydra.core.global_hydra import GlobalHydra


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDFEAT_ROOT", str(tmp_path))
    monkeypatch.delenv("FEDFEAT_DATA", raising=False)
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()
