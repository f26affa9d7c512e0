"""What a client does in its turns, against arithmetic written out in NumPy or plain PyTorch."""

import itertools

import numpy as np
import pytest
import torch
from harness import (
    SIZES,
    Parties,
    assert_close,
    averaged,
    examples_of,
    gradient,
    linear,
    local_steps,
    make_data,
    params_of,
    parties,
    zeros,
)  # fmt: skip
from torch import nn

from fedfeat.client import ClientModule
from fedfeat.rounds.sampling import sample_stragglers, straggler_steps


def final(federation: Parties):
    return params_of(federation.run()[0][-1])


def check_kept_momentum(store_dir):
    """One client of one batch: two rounds of 3 steps are one round of 6."""
    one = {"data": make_data((7,)), "momentum": 0.9, "lr": 0.1}
    kept = parties(store_dir / "kept", **one, local_epochs=3, num_rounds=2, keep_optimizer=True)
    whole = parties(store_dir / "long", **one, local_epochs=6, num_rounds=1)
    assert_close(final(kept), final(whole))


def test_kept_momentum_continues_over_rounds(tmp_path):
    check_kept_momentum(tmp_path)


def test_momentum_by_hand(tmp_path):
    """PyTorch's rule: v = 0.9 v + g, w = w - lr v; reset starts v at zero in every round."""
    for keep in (True, False):
        data = make_data((7,))
        arguments = {"data": data, "momentum": 0.9, "lr": 0.1, "local_epochs": 3, "keep_optimizer": keep}
        found = final(parties(tmp_path / str(keep), **arguments))
        params, speed = zeros(), zeros()
        for step in range(6):
            if step == 3 and not keep:
                speed = zeros()
            slopes = gradient(*params, *examples_of(data, 0))
            speed = tuple(0.9 * v + g for v, g in zip(speed, slopes, strict=True))
            params = tuple(w - 0.1 * v for w, v in zip(params, speed, strict=True))
        assert_close(found, params)


def test_momentum_that_is_not_restored_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.optim.SGD, "load_state_dict", lambda self, state: None)
    with pytest.raises(AssertionError):
        check_kept_momentum(tmp_path)


def test_local_clients_train_as_if_alone(tmp_path):
    federation = parties(
        tmp_path,
        client=lambda **arguments: ClientModule(personal=["all"], **arguments),
        local_epochs=2,
        num_rounds=3,
    )
    _, records = federation.run()
    for k in range(3):
        expected = local_steps(zeros(), federation.data, k, num_steps=6)
        own = [tensor.double().numpy() for tensor in federation.store.get(k).personal.values()]
        assert_close(own, expected)
    assert {record.metrics["comm/total_bytes"] for record in records} == {0.0}


def test_centralized_training_is_plain_pytorch_on_the_pooled_data(tmp_path):
    data = make_data().pooled()
    found = parties(
        tmp_path, data=data, batch_size=4, momentum=0.9, lr=0.1, local_epochs=2, keep_optimizer=True
    )
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for round_idx in range(2):
        batches = data.train_batches(0, 0, round_idx, 4)
        for inputs, labels in itertools.chain(batches, batches):
            seen.append(len(labels))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    assert seen == [4] * 16
    expected = [tensor.detach().double().numpy() for tensor in model.state_dict().values()]
    assert_close(final(found), expected)


def works(plan, data):
    """Steps of every client in every round as the plan's addresses draw them."""
    for round_idx in range(plan.num_rounds):
        cohort = tuple(range(data.num_clients))
        late = sample_stragglers(0, round_idx, cohort, plan.straggler_fraction)
        yield {k: straggler_steps(0, round_idx, k, 4, 1) if k in late else 4 for k in cohort}, late


def test_stragglers_do_part_of_their_work(tmp_path):
    federation = parties(tmp_path, local_epochs=4, num_rounds=3, straggler_fraction=2 / 3)
    progress, records = federation.run()
    expected, examples = zeros(), 0
    for round_idx, (steps, late) in enumerate(works(federation.plan, federation.data)):
        assert len(late) == 2
        assert all(1 <= steps[k] <= 3 for k in late)
        found = [local_steps(expected, federation.data, k, steps[k]) for k in range(3)]
        expected = tuple(np.average([pair[i] for pair in found], axis=0, weights=SIZES) for i in range(2))
        assert_close(params_of(progress[round_idx + 1]), expected)
        examples += sum(SIZES[k] * steps[k] for k in range(3))
        assert records[round_idx + 1].metrics["compute/examples"] == examples


def test_dropped_stragglers_are_left_out(tmp_path):
    federation = parties(
        tmp_path, local_epochs=4, num_rounds=3, straggler_fraction=1 / 3, drop_stragglers=True
    )
    progress, _ = federation.run()
    expected = zeros()
    for round_idx, (_, late) in enumerate(works(federation.plan, federation.data)):
        on_time = [k for k in range(3) if k not in late]
        assert len(on_time) == 2
        expected = averaged(expected, federation.data, on_time, [SIZES[k] for k in on_time], num_steps=4)
        assert_close(params_of(progress[round_idx + 1]), expected)


def test_a_round_in_which_all_are_dropped_changes_nothing(tmp_path):
    federation = parties(tmp_path, straggler_fraction=1.0, drop_stragglers=True, num_rounds=1)
    progress, records = federation.run()
    assert_close(params_of(progress[1]), zeros(), tolerance=0)
    assert records[1].metrics["comm/up_bytes"] == 0
    assert records[1].metrics["comm/down_bytes"] == 3 * 15 * 4
