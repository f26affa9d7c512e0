"""Representations made part by part, and the kernels in which they are sent."""

import pytest
import torch
from kernel_harness import doubly_centred, normal
from torch.utils._python_dispatch import TorchDispatchMode

from fedfeat.features.alignment import AlignmentTerm, centred_kernel_, represented
from fedfeat.features.kernels import rbf_kernel
from fedfeat.features.matrices import gaussian


def test_parts_are_put_together_as_float32():
    sizes = []

    def represent(part):
        sizes.append(len(part))
        return (2 * part).to(torch.bfloat16).view(len(part), 3, 2)

    inputs = torch.arange(42.0).view(7, 6)
    found = represented(represent, inputs, 3)
    assert sizes == [3, 3, 1]
    assert found.dtype == torch.float32
    assert torch.equal(found, 2 * inputs)


@pytest.mark.parametrize(("m", "width", "dense"), [(6, 2, False), (6, 6, False), (6, 7, True), (5, 40, True)])
def test_a_kernel_is_the_centred_one_in_as_few_numbers(m, width, dense):
    a = normal(m, width)
    kernel = centred_kernel_(a.clone())
    assert kernel.dense == dense
    assert kernel.values.shape == (m, min(m, width))
    torch.testing.assert_close(kernel.matrix(), doubly_centred(a @ a.T))
    assert (centred_kernel_(torch.full((m, width), 1e6)).values == 0).all()


@pytest.mark.parametrize("width", [3, 20])
def test_distances_follow_from_it(width):
    a = normal(8, width)
    found = gaussian(centred_kernel_(a.clone()).scaled().matrix(), 0.8)
    torch.testing.assert_close(found, rbf_kernel(a, 0.8).matrix())


class _Storages(TorchDispatchMode):
    """Notes where tensors of at least so many numbers lie."""

    def __init__(self, least):
        super().__init__()
        self.least, self.kept = least, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if torch.is_tensor(out) and out.untyped_storage().nbytes() >= 4 * self.least:
            self.kept.append(out.untyped_storage())
        return out


@pytest.mark.parametrize("width", [6, 40])
def test_a_representation_is_held_once(width):
    """Of 10 inputs in two parts; the kernel of a wide one is 10 x 10."""
    weight, inputs = torch.ones(4, width), torch.ones(10, 4)
    with _Storages(10 * width) as large:
        kernel = centred_kernel_(represented(lambda part: part @ weight, inputs, 5))
    addresses = {storage.data_ptr() for storage in large.kept}
    assert len(addresses) == 1
    assert (kernel.values.data_ptr() in addresses) == (width == 6)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("batch", [None, 7])
def test_the_term_has_its_minimum_at_the_model_that_gave_the_target(kernel, batch):
    """Also where a step takes some inputs, whose median distance is not that of all."""
    weight, inputs = normal(5, 3).double().requires_grad_(), normal(40, 5).double()
    term = AlignmentTerm(kernel, 0.4, "biased", batch)
    term.fix(inputs, None, lambda part: part @ weight)
    for _ in range(3):
        distance = term.distance(lambda part: part @ weight)
        (gradient,) = torch.autograd.grad(distance, weight)
        assert abs(float(distance.detach())) < 1e-12
        assert float(gradient.abs().max()) < 1e-9
    assert float(term.distance(lambda part: (part @ weight.detach()).square())) > 1e-3
