"""The parts of a stacked fit, each against the same done model by model."""

import numpy as np
import pytest
import torch
from harness import make_data
from torch import nn
from torch.nn import functional

from fedfeat.data.batches import PADDED
from fedfeat.executors.stacked.batches import StackedBatches
from fedfeat.executors.stacked.dropout import DropoutMasks, dropout_calls
from fedfeat.executors.stacked.stacking import (
    Objective,
    gradients,
    narrow,
    repeated,
    restack,
    write_row,
)
from fedfeat.params import rows


def test_rows_of_a_stack_are_what_was_written():
    first = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    stack = repeated(first, 3)
    assert stack["a"].tolist() == [[1.0, 2.0]] * 3
    second = {"n": torch.tensor(5), "other": torch.zeros(1), "a": torch.tensor([7.0, 8.0])}
    write_row(stack, 1, second)
    assert [row["a"].tolist() for row in rows(stack)] == [[1.0, 2.0], [7.0, 8.0], [1.0, 2.0]]
    assert [row["n"].item() for row in rows(stack)] == [3, 5, 3]
    assert first["a"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
        lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True),
        lambda params: torch.optim.AdamW(params, lr=0.1),
        lambda params: torch.optim.Adamax(params, lr=0.1),
        lambda params: torch.optim.NAdam(params, lr=0.1),
        lambda params: torch.optim.RAdam(params, lr=0.1),
        lambda params: torch.optim.RMSprop(params, lr=0.1, momentum=0.9, centered=True),
        lambda params: torch.optim.Adadelta(params, lr=0.1),
        lambda params: torch.optim.Rprop(params, lr=0.1),
    ],
    ids=["sgd", "nesterov", "adam", "adamw", "adamax", "nadam", "radam", "rmsprop", "adadelta", "rprop"],
)
def test_models_that_stop_early_stay_where_they_are(make):
    """Three models of 7, 4 and 1 steps under f(w) = |w - target|^2 / 2, against an optimizer of their own each."""
    steps = [7, 4, 1]
    target = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    single = nn.Parameter(torch.zeros(5))
    optimizer = make([single])
    stacked = nn.Parameter(torch.zeros(3, 5))
    restack(optimizer, {single: stacked})
    full = {stacked: stacked.data}
    for step in range(7):
        active = sum(step < mine for mine in steps)
        if active < len(stacked):
            narrow(optimizer, full, active)
        optimizer.zero_grad()
        ((stacked - target[:active]) ** 2 / 2).sum().backward()
        optimizer.step()
    for index, mine in enumerate(steps):
        alone = nn.Parameter(torch.zeros(5))
        own = make([alone])
        for _ in range(mine):
            own.zero_grad()
            ((alone - target[index]) ** 2 / 2).sum().backward()
            own.step()
        torch.testing.assert_close(full[stacked][index], alone.data, rtol=0, atol=0)
    assert not torch.equal(full[stacked][0], full[stacked][2])


class Linear(nn.Module):
    """Stands for a client half: a softmax regression with dropout on its inputs and on its hidden layer."""

    channels_last = False

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.25), nn.Linear(6, 3)
        )

    def loss(self, batch):
        return functional.cross_entropy(self.net(batch[0]), batch[1])


def test_losses_and_gradients_are_those_of_each_model_with_its_own_dropout():
    torch.manual_seed(3)
    models = [Linear() for _ in range(3)]
    sizes, seeds = [5, 4, 2], [11, 12, 13]
    inputs = [torch.randn(size, 4) for size in sizes]
    labels = [torch.randint(3, (size,)) for size in sizes]
    calls = dropout_calls(models[0], lambda: models[0].loss((inputs[0], labels[0])))
    objective = Objective(models[0], calls)
    assert [call.shape for call in calls] == [(4,), (6,)]
    stack = repeated(objective.state_dict(), 3)
    for index, model in enumerate(models):
        write_row(stack, index, Objective(model).state_dict())
    x = nn.utils.rnn.pad_sequence(inputs, batch_first=True)
    y = nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=PADDED)
    drawing = DropoutMasks(calls, seeds, torch.device("cpu"))
    for step in range(2):
        masks = drawing.draw(sizes, 5)
        with objective.stacked_forms():
            found, losses, moved = gradients(objective, stack, {}, x, y, masks)
            assert moved == {}
        for index, model in enumerate(models):
            torch.manual_seed(seeds[index])
            for _ in range(step + 1):
                expected = model.loss((inputs[index], labels[index]))
            torch.testing.assert_close(losses[index], expected)
            own = torch.autograd.grad(expected, list(model.parameters()))
            for all_of_them, one in zip(found.values(), own, strict=True):
                torch.testing.assert_close(all_of_them[index], one)
    # The layers draw by themselves again.
    torch.manual_seed(0)
    first = models[0].loss((inputs[0], labels[0]))
    assert first != models[0].loss((inputs[0], labels[0]))


def test_layers_in_evaluation_draw_nothing():
    model = Linear().eval()
    assert (
        dropout_calls(model, lambda: model.loss((torch.zeros(2, 4), torch.zeros(2, dtype=torch.long)))) == []
    )


@pytest.mark.parametrize("one_shape", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 8, 64, None])
def test_stacked_batches_are_those_of_every_client(batch_size, one_shape):
    data = make_data((8, 5, 3))
    num_steps = {0: 7, 1: 6, 2: 2}
    phases = [[steps] for steps in num_steps.values()]
    batches = StackedBatches(data, list(num_steps), phases, (5, 9), batch_size, one_shape=one_shape)
    assert batches.ends == [7]
    assert len(batches) == 7
    seen = {k: [] for k in num_steps}
    for step, (inputs, labels) in enumerate(batches):
        active = sum(step < steps for steps in num_steps.values())
        if one_shape:
            assert labels.shape == inputs.shape[:2] == (3, min(batch_size or 8, 8))
            assert (labels[active:] == PADDED).all()
        else:
            assert len(labels) == active
        for k in range(active):
            real = labels[k] != PADDED
            assert real.sum() == batches.sizes[step, k] > 0
            seen[k].append((inputs[k][real], labels[k][real]))
    for k, steps in num_steps.items():
        alone = data.train_batches(k, 5, 9, batch_size)
        expected = []
        while len(expected) < steps:
            expected += list(alone)
        assert len(seen[k]) == steps
        for (x, y), (expected_x, expected_y) in zip(seen[k], expected, strict=False):
            assert torch.equal(x, expected_x)
            assert torch.equal(y, expected_y)
    assert np.array_equal((batches.sizes > 0).sum(0), [7, 6, 2])


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_a_phase_begins_for_everyone_at_one_step(batch_size):
    """Batches are those of one fit, whose second phase the shorter clients wait for."""
    data, phases = make_data((8, 5, 3)), [(6, 4), (5, 4), (2, 0)]
    batches = StackedBatches(data, [0, 1, 2], phases, (5, 9), batch_size)
    assert batches.ends == [6, 10]
    assert len(batches) == 10
    found = {k: [] for k in range(3)}
    for step, (_, labels) in enumerate(batches):
        place, phase = (step, 0) if step < 6 else (step - 6, 1)
        active = [k for k in range(3) if place < phases[k][phase]]
        assert len(labels) == len(active)
        for k in active:
            found[k].append([int(label) for label in labels[k] if label != PADDED])
    for k, steps in enumerate(phases):
        fit, expected = data.train_batches(k, 5, 9, batch_size), []
        while len(expected) < sum(steps):
            expected += [labels.tolist() for _, labels in fit]
        assert found[k] == expected[: sum(steps)]
        assert batches.seen()[k] == [sum(map(len, found[k][: steps[0]])), sum(map(len, found[k][steps[0] :]))]
