"""Batch norm, kept optimizers and clipping of stacked clients, each against PyTorch's own, client by client."""

from functools import partial

import numpy as np
import pytest
import torch
from harness import parties
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedfeat.client import ClientModule
from fedfeat.clients.optimizers import kept_tensors, optimizer_state
from fedfeat.clients.tasks import Task
from fedfeat.errors import DIVERGED, CheckpointError, ClientError
from fedfeat.executors.stacked import vectorized
from fedfeat.executors.stacked.clipping import Clip
from fedfeat.executors.stacked.norms import at_rest, batch_norms, normalised, resting_norms
from fedfeat.executors.stacked.stacking import ELEMENTWISE, narrow
from fedfeat.executors.stacked.states import StateRows, clock, load_states
from fedfeat.executors.stacked.turns import chains
from fedfeat.executors.stacked.vectorized import VectorizedExecutor
from fedfeat.types import Update


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (2, 3))]
)
def test_batch_norm_of_padded_batches_is_that_of_the_examples(kind, shape, momentum):
    torch.manual_seed(0)
    layer = kind(4, momentum=momentum).double()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    sizes, width = [6, 3, 0], 6
    inputs = torch.randn(3, width, 4, *shape, dtype=torch.float64) * 3 + 1
    running = {name: buffer.expand(3, *buffer.shape).clone() for name, buffer in layer.named_buffers()}
    real = torch.arange(width) < torch.tensor(sizes)[:, None]
    for step in range(2):
        out, running = vmap(lambda x, r, state: normalised(layer, x, r, state))(inputs + step, real, running)
        for index, size in enumerate(sizes[:2]):
            alone = kind(4, momentum=momentum).double()
            alone.load_state_dict(layer.state_dict())
            for before in range(step + 1):
                expected = alone(inputs[index, :size] + before)
            torch.testing.assert_close(out[index, :size], expected, rtol=0, atol=1e-12)
            for name, buffer in alone.named_buffers():
                torch.testing.assert_close(running[name][index], buffer, rtol=0, atol=1e-12)
    assert all(torch.equal(running[name][2], buffer) for name, buffer in layer.named_buffers())
    assert out.isfinite().all()


def test_gradients_through_batch_norm_are_those_of_the_examples():
    layer = nn.BatchNorm1d(3).double()
    inputs = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 3, dtype=torch.float64)
    out, _ = normalised(layer, inputs, torch.arange(7) < 4, dict(layer.named_buffers()))
    (found,) = torch.autograd.grad((out[:4] * weights).sum(), inputs)
    (expected,) = torch.autograd.grad(
        (
            functional.batch_norm(inputs[:4], None, None, layer.weight, layer.bias, training=True) * weights
        ).sum(),
        inputs,
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert not found[4:].any()


def test_frozen_batch_norms_stay_as_they_are():
    without = nn.BatchNorm1d(2, track_running_stats=False).eval()
    net = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval(), nn.Linear(2, 2), without)
    assert list(batch_norms(net)) == ["0"]
    assert resting_norms(net) == [net[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_at_rest_of_a_stack_is_that_of_each(dtype, affine):
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(4, affine=affine).eval()
    stacked = {name: torch.rand(3, 4) + 0.5 for name, one in layer.state_dict().items() if one.dim()}
    inputs = torch.randn(3, 5, 4, 2, 3).to(dtype)
    layer.forward = partial(at_rest, layer)
    found = vmap(lambda tensors, x: functional_call(layer, tensors, (x,)))(stacked, inputs)
    del layer.forward
    assert found.dtype == dtype
    for k in range(3):
        expected = functional_call(
            layer, {name: one[k] for name, one in stacked.items()}, (inputs[k].float(),)
        )
        torch.testing.assert_close(
            found[k], expected.to(dtype), rtol=8e-3 if dtype.itemsize == 2 else 1e-6, atol=1e-6
        )


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_states_go_from_fit_to_fit_as_those_of_clients_alone(kind):
    """Two fits with 4, 2 and 1 steps; in the second the client that had most makes fewest."""
    torch.manual_seed(1)
    start, target = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    alone, kept_alone = [start[k].clone() for k in range(3)], [{}, {}, {}]
    stacked, kept = start.clone(), [{}, {}, {}]
    for steps in ((3, 3, 3), (4, 2, 1)):
        for k, mine in enumerate(steps):
            own = nn.Parameter(alone[k])
            optimizer = kind([own], lr=0.05, **extra)
            if kept_alone[k]:
                state = {**optimizer.state_dict(), "state": optimizer_state(kept_alone[k])}
                optimizer.load_state_dict(state)
            for _ in range(mine):
                own.grad = own.detach() - target[k]
                optimizer.step()
            alone[k], kept_alone[k] = own.detach(), kept_tensors(optimizer)
        weights = nn.Parameter(stacked.clone())
        optimizer, full = kind([weights], lr=0.05, **extra), {weights: weights.data}
        assert len({clock(one) for one in kept}) == 1
        if kept[0]:
            load_states(optimizer, kept)
        states = StateRows(optimizer, 3)
        for step in range(max(steps)):
            active = sum(step < mine for mine in steps)
            if active != len(weights):
                states.note(active)
                narrow(optimizer, full, active)
            weights.grad = weights.detach() - target[:active]
            optimizer.step()
        stacked, kept = full[weights], states.read()
        for k in range(3):
            torch.testing.assert_close(stacked[k], alone[k], rtol=0, atol=1e-12)
            assert kept[k].keys() == kept_alone[k].keys()
            for key, value in kept_alone[k].items():
                torch.testing.assert_close(kept[k][key], value, rtol=0, atol=1e-12)


def test_clients_whose_optimizers_are_not_of_one_age_are_no_fit():
    young, old = {"0/step": torch.tensor(1.0), "0/exp_avg": torch.ones(2)}, {"0/step": torch.tensor(2.0)}
    assert clock(young) != clock(old | {"0/exp_avg": torch.ones(2)})
    assert clock(young) == clock(young | {"0/exp_avg": torch.zeros(2)})
    assert clock({}) != clock(young)


@pytest.mark.parametrize("value", [0.5, 100.0])
def test_each_client_is_clipped_by_its_own_norm(value):
    torch.manual_seed(2)
    stack = [torch.randn(3, 4, 2), torch.randn(3, 5) * 9, torch.randn(3)]
    found = [tensor.clone() for tensor in stack]
    Clip(value, "norm").together(found)
    for index in range(3):
        alone = [nn.Parameter(torch.zeros_like(tensor[index])) for tensor in stack]
        for parameter, tensor in zip(alone, stack, strict=True):
            parameter.grad = tensor[index].clone()
        nn.utils.clip_grad_norm_(alone, value)
        for mine, parameter in zip(found, alone, strict=True):
            torch.testing.assert_close(mine[index], parameter.grad, rtol=1e-6, atol=0)


def test_each_number_is_clipped_by_its_value():
    found = torch.tensor([[-3.0, 0.2], [0.4, 9.0]])
    Clip(0.3, "value").together([found])
    assert np.allclose(found, [[-0.3, 0.2], [0.3, 0.3]])


def test_clients_that_are_ahead_in_one_phase_and_behind_in_another_are_two_fits():
    phases = [(2, 9), (4, 4), (4, 0), (1, 1), (2, 3)]
    parts = chains(phases)
    assert parts == [[1, 2], [0, 4, 3]]
    assert chains([(3,), (5,), (5,)]) == [[1, 2, 0]]


class _Sick(ClientModule):
    """Client 1 sends what is not finite, though its weights are."""

    def upload(self, turn, tensors):
        payload, _ = super().upload(turn, tensors)
        return payload, {"control": torch.tensor(torch.inf if turn.client_id == 1 else 0.0)}


def test_what_is_sent_beside_finite_weights_is_looked_at_too(tmp_path):
    federation = parties(tmp_path, client=_Sick, build_executor=VectorizedExecutor)
    payload = federation.server.broadcast(federation.start().state, 0)
    found = list(federation.executor.map("fit", [Task(k, 0, payload, None, 2) for k in range(3)]))
    assert [type(one) for one in found] == [Update, ClientError, Update]
    assert str(found[1]).endswith(f"{DIVERGED}.")


def test_a_run_goes_on_with_as_many_at_once_as_it_began_with(tmp_path, monkeypatch):
    """On a GPU that is as many as there was room for, and sums of fewer round otherwise."""
    free = {"bytes": 4e4}
    monkeypatch.setattr(vectorized, "_allowed_bytes", lambda device: free["bytes"])
    run = tmp_path / "run"
    run.mkdir()

    def begun():
        executor = parties(tmp_path / "store", build_executor=VectorizedExecutor).executor
        executor._as_is_free = True
        executor.settle(run, None)
        executor.note(run)
        return executor.num_together

    first = begun()
    free["bytes"] /= 4
    assert begun() == first > 1
    (run / vectorized.FILE).unlink()
    assert 1 <= begun() < first
    (run / vectorized.FILE).write_text('{"num')
    with pytest.raises(CheckpointError, match=r"stacked\.json must say how many clients are fitted at once"):
        begun()
