import multiprocessing
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from harness import linear, turn_of
from torch import nn

from fedfeat.client import ClientModule
from fedfeat.clients.turns import TrainedTensors
from fedfeat.errors import ConfigError
from fedfeat.models.mlp import mlp
from fedfeat.params import select, snapshot
from fedfeat.types import Weights


def client(personal=(), lr=0.5):
    torch.manual_seed(3)
    return ClientModule(mlp((4,), 3, hidden=[5]), partial(torch.optim.SGD, lr=lr, momentum=0.9), personal)


def filled(params, value):
    return {key: torch.full_like(tensor, value) for key, tensor in params.items()}


def test_a_client_is_what_it_received_and_what_it_remembers():
    module = client(["head"])
    shared, head = (
        {key: t for key, t in snapshot(module.model).items() if key.startswith(part)}
        for part in ("enc", "head")
    )
    module.take_personal(filled(head, 2.0))
    module.receive(Weights(filled(shared, 1.0)), None)
    trained = TrainedTensors(module)
    payload, memory = module.upload(turn_of(), trained)
    assert memory is None
    for found, keys, value in (
        (payload.params, shared, 1.0),
        (select(trained["model"], module.personal_keys), head, 2.0),
    ):
        assert list(found) == list(keys)
        assert all((tensor == value).all() for tensor in found.values())


def test_a_client_without_memory_starts_from_the_initial_model_not_from_the_last_client():
    module = client(["head"])
    initial = snapshot(module.model, module.personal_keys)
    shared = Weights(snapshot(module.model, module.shared_keys))
    module.take_personal(filled(initial, 9.0))
    module.receive(shared, None)
    module.take_personal({})
    module.receive(shared, None)
    assert all(torch.equal(module.model.state_dict()[key], initial[key]) for key in initial)


def test_an_upload_does_not_follow_the_module():
    module = client()
    payload, memory = module.upload(turn_of(), TrainedTensors(module))
    before = {key: tensor.clone() for key, tensor in payload.params.items()}
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    assert all(torch.equal(payload.params[key], before[key]) for key in before)
    assert memory is None


def test_the_loss_of_equal_logits_is_the_logarithm_of_the_number_of_classes():
    module = ClientModule(linear(), partial(torch.optim.SGD, lr=0.1))
    loss = module.loss((torch.ones(2, 4), torch.tensor([0, 2])))
    assert loss.item() == pytest.approx(1.0986123)  # ln 3


def test_the_mean_loss_of_a_turn_weighs_batches_by_their_examples(monkeypatch):
    module = client()
    losses = iter([torch.tensor(1.0, requires_grad=True), torch.tensor(4.0, requires_grad=True)])
    monkeypatch.setattr(module, "loss", lambda batch: next(losses))
    module.ready(turn_of())
    module.trainer = SimpleNamespace(accumulate_grad_batches=1)
    module.training_step((torch.zeros(3, 4), torch.zeros(3)), 0)
    module.training_step((torch.zeros(1, 4), torch.zeros(1)), 1)
    assert module.turn_metrics() == {
        "train/loss": (3 * 1 + 4) / 4,
        "examples": 4.0,
        "flops": 4.0 * module.flops_per_example,
    }
    # Forward 2 * (4 * 5 + 5 * 3); backward to the weights the same, to the hidden layer 2 * 5 * 3.
    assert module.flops_per_example == 70 + 70 + 30
    module.ready(turn_of())
    assert module.turn_metrics()["examples"] == 0.0


def test_the_learning_rate_is_the_rounds():
    module = client(lr=0.5)
    module.ready(turn_of(lr=0.1))
    assert module.configure_optimizers().param_groups[0]["lr"] == pytest.approx(0.1)


def test_what_is_frozen_is_not_optimised():
    module = client()
    module.model.encoder.requires_grad_(False)
    (group,) = module.configure_optimizers().param_groups
    assert [parameter.shape for parameter in group["params"]] == [(3, 5), (3,)]


def test_a_selector_that_matches_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.client\.personal must .*'nose'"):
        client(["nose"])


def end_a_fit(rank, place, found):
    torch.distributed.init_process_group("gloo", f"file://{place}", rank=rank, world_size=2)
    module = ClientModule(nn.Sequential(nn.BatchNorm1d(3)), partial(torch.optim.SGD, lr=0.1))
    module.model[0].running_mean.fill_(rank + 1.0)
    module._loss_sum, module._num_seen = rank + 1.0, 2.0**24 + 1
    strategy = SimpleNamespace(reduce=lambda seen, reduce_op: torch.distributed.all_reduce(seen) or seen)
    module._trainer = SimpleNamespace(world_size=2, strategy=strategy)
    module.on_train_end()
    found.put((rank, module.model[0].running_mean.tolist(), module._loss_sum, module._num_seen))
    # Gloo aborts a process whose peer ends while they still talk.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_devices_that_share_a_fit_leave_it_with_the_same_statistics(tmp_path):
    """Each has seen its part of every batch: with others they would score otherwise, and stop in another round.

    Their examples are counted beyond what float32 can.
    """
    context = multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    ranks = [context.Process(target=end_a_fit, args=(rank, tmp_path / "store", found)) for rank in (0, 1)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(120)
        assert one.exitcode == 0
    assert sorted(found.get() for _ in ranks) == [(rank, [1.0] * 3, 3.0, 2.0**25 + 2) for rank in (0, 1)]
