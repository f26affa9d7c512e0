"""Fixtures of the loggers' tests."""

import pytest
from PIL import Image


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    Image.new("RGB", (8, 6), (255, 0, 0)).save(path)
    return path
