import numpy as np
import pytest

from fedfeat.data.partition.picture import class_picture


@pytest.mark.parametrize("shape", [(1, 2), (2, 10), (1000, 10), (3, 100)])
def test_the_picture_is_a_png_of_bounded_size(shape):
    png = class_picture(np.arange(np.prod(shape)).reshape(shape), [f"$_{c}$ class" for c in range(shape[1])])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = np.frombuffer(png[16:24], ">u4")
    assert 500 <= width <= 1400
    assert 250 <= height <= 1100
