"""Means of tensors of which clients hold unequal parts."""

import pytest
import torch

from fedfeat.algorithms.element_mean import ElementMean
from fedfeat.params import WeightedMean


def test_parts_of_four_channels_by_hand():
    """One client has channels 0 and 1, one 2 and 3 and 0 of three inputs, one everything; weights 1, 2 and 4."""
    old = {"w": torch.arange(12.0).view(4, 3), "b": torch.tensor([-1.0, -2.0, -3.0, -4.0])}
    mean = ElementMean(old)
    rows, columns = torch.tensor([0, 1]), torch.tensor([1, 2])
    mean.add(
        {"w": torch.full((2, 2), 10.0), "b": torch.tensor([1.0, 2.0])},
        {"w": (rows, columns), "b": (rows,)},
        1,
    )
    wrapped, one = torch.tensor([3, 0]), torch.tensor([2])
    part = {"w": torch.tensor([[20.0], [40.0]]), "b": torch.tensor([5.0, 8.0])}
    mean.add(part, {"w": (wrapped, one), "b": (wrapped,)}, 2)
    found = mean.result()
    # Of row 0, the first client has columns 1 and 2, the second column 2.
    expected = [[0.0, 10.0, (10 + 2 * 40) / 3], [3.0, 10.0, 10.0], [6.0, 7.0, 8.0], [9.0, 10.0, 20.0]]
    torch.testing.assert_close(found["w"], torch.tensor(expected))
    torch.testing.assert_close(found["b"], torch.tensor([(1 + 2 * 8) / 3, 2.0, -3.0, 5.0]))
    mean.add({"w": torch.zeros(4, 3), "b": torch.zeros(4)}, {}, 4)
    found = mean.result()
    torch.testing.assert_close(found["b"], torch.tensor([(1 + 16 + 0) / 7, 2 / 5, 0.0, 10 / 6]))
    assert float(found["w"][2, 0]) == 0.0
    assert float(old["w"][2, 2]) == 8.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 5, 8), (7, 0, 2)])
def test_of_whole_tensors_it_is_the_weighted_mean_bit_for_bit(weights, dtype):
    draw = torch.Generator().manual_seed(0)
    updates = [
        {
            "w": torch.randn(5, 3, generator=draw).to(dtype),
            "zero": torch.tensor([-0.0], dtype=dtype),
            "n": torch.tensor(k),
        }
        for k in range(3)
    ]
    mean, plain = ElementMean(updates[0]), WeightedMean()
    for update, weight in zip(updates, weights, strict=True):
        mean.add(update, {}, weight)
        plain.add(update, weight)
    found, expected = mean.result(), plain.result()
    assert found.keys() == expected.keys()
    for key, its in expected.items():
        assert found[key].dtype == its.dtype
        assert torch.equal(found[key], its)
        assert torch.equal(torch.signbit(found[key]), torch.signbit(its))


def test_one_client_comes_back_bit_for_bit():
    own = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    old = {"w": torch.zeros(4, 3)}
    mean = ElementMean(old)
    mean.add({"w": own}, {"w": (torch.tensor([3, 1]),)}, 0.3)
    found = mean.result()["w"]
    assert torch.equal(found[[3, 1]], own)
    assert torch.equal(found[[0, 2]], old["w"][[0, 2]])


def test_nobody_changes_nothing():
    old = {"w": torch.tensor([1.5]), "n": torch.tensor(3)}
    found = ElementMean(old).result()
    assert torch.equal(found["w"], old["w"])
    assert torch.equal(found["n"], old["n"])
