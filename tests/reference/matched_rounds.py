"""Passes of FedMA (Alg. 1, with communication) in plain PyTorch and double precision.

Three clients of 3, 5 and 8 examples with one, two and three classes. A layer is a pair (weight, bias); a matched
neuron's inputs are moved one block at a time, and the gain of an assignment is written out as a sum over entries.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from grouped_rounds import LABELS, grouped_data, seeded
from harness import SIZES, parties
from scipy.optimize import linear_sum_assignment
from torch.nn import functional

from fedfeat.algorithms.fedma import FedMAClient, FedMAServer
from fedfeat.features.matching import BBPMap
from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.mlp import mlp
from fedfeat.models.network import Network
from fedfeat.seeding import derive_seed, numpy_generator

LR, MOMENTUM, STEPS, NUM_CLIENTS = 0.3, 0.5, 4, len(SIZES)
COUNTS = np.array([[labels.count(c) for c in range(3)] for labels in LABELS])
NUM_LAYERS = {"conv": 4, "mlp": 3}


class Setting(NamedTuple):
    model: str = "mlp"
    init: str = "shared"
    matching: BBPMap = BBPMap()
    weight_decay: float = 0.0


SETTINGS = {
    "conv": Setting("conv"),
    "mlp": Setting("mlp", weight_decay=0.05),
    "conv, initial weights of each client": Setting("conv", "independent"),
    "mlp, no growth": Setting("mlp", "independent", BBPMap(gamma=1e-4, sigma2=0.5, shrink=False)),
}


def fresh(name):
    """A network drawn from the current generator."""
    if name == "mlp":
        return mlp((2, 1, 2), 3, hidden=[6, 5])
    blocks = [("conv1", conv_block(2, 4, 3, padding=1)), ("conv2", conv_block(4, 5, 3, padding=1))]
    return Network(blocks, fc_blocks(10, [4], 3), (2, 1, 2), 3)


def federation_of(setting, store_dir, **plan):
    """The same through the real loop, two passes of it; further arguments are those of `Plan`."""
    arguments = {"lr": LR, "momentum": MOMENTUM, "local_epochs": STEPS}
    return parties(
        store_dir,
        data=grouped_data(),
        client=partial(FedMAClient, weight_decay=setting.weight_decay),
        server=FedMAServer(setting.matching, setting.init),
        build_model=partial(seeded, partial(fresh, setting.model)),
        **(arguments | {"num_rounds": 2 * NUM_LAYERS[setting.model]} | plan),
    )


def layers_of(params):
    """Pairs (weight, bias) of parameters in their order."""
    tensors = [tensor.detach().double() for tensor in params.values()]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def logits(layers, x):
    for index, (weight, bias) in enumerate(layers):
        if weight.ndim == 4:
            x = functional.conv2d(x, weight, bias, padding=1)
        else:
            x = x.flatten(1) @ weight.T + bias
        x = x.relu() if index < len(layers) - 1 else x
    return x


def trained(layers, frozen, x, y, weight_decay):
    """Full-batch steps with momentum on the layers from ``frozen`` on."""
    lr, steps = LR, STEPS
    if frozen == len(layers) - 1:
        lr, steps, weight_decay = LR / 10, 3 * STEPS, 1e-4
    tensors = [tensor.clone() for layer in layers for tensor in layer]
    free = tensors[2 * frozen :]
    velocity = [torch.zeros_like(tensor) for tensor in free]
    for _ in range(steps):
        for tensor in free:
            tensor.requires_grad_(True)
        pairs = list(zip(tensors[::2], tensors[1::2], strict=True))
        gradients = torch.autograd.grad(functional.cross_entropy(logits(pairs, x), y), free)
        for i, tensor in enumerate(free):
            tensor.requires_grad_(False)
            velocity[i] = MOMENTUM * velocity[i] + gradients[i] + weight_decay * tensor
            tensor -= lr * velocity[i]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def gain(row, atom, how, prior):
    """What putting a row into an atom adds to the log posterior; an atom is the list of its rows."""
    precision = 1 / how.sigma02 + len(atom) / how.sigma2
    total = prior / how.sigma02 + sum(other / how.sigma2 for other in atom)
    return ((total + row / how.sigma2) ** 2 / (precision + 1 / how.sigma2) - total**2 / precision).sum()


def match(clients, draw, how):
    """Assign the rows of every client (L_j, d), the last entry the bias; give assignments and global rows."""
    prior = np.append(np.zeros(clients[0].shape[1] - 1), 0.1)
    place: list = [None] * len(clients)  # of each client: a label of an atom per row
    order: list = []  # of atoms, oldest first

    def members(label, without):
        return [
            clients[j][place[j].index(label)]
            for j in range(len(clients))
            if j != without and place[j] and label in place[j]
        ]

    def put(j):
        nonlocal order
        order = [label for label in order if members(label, j)]
        width = len(clients[j])
        table = np.zeros((width, len(order) + width))
        for i, label in enumerate(order):
            rows = members(label, j)
            odds = how.popularity_coef * np.log(len(rows) / (len(clients) - len(rows)))
            table[:, i] = [gain(row, rows, how, prior) + odds for row in clients[j]]
        for m in range(width):
            opening = 2 * np.log(how.gamma / len(clients)) - 2 * np.log(m + 1)
            table[:, len(order) + m] = [gain(row, [], how, prior) + opening for row in clients[j]]
        chosen = linear_sum_assignment(-table)[1]
        place[j] = [order[column] if column < len(order) else object() for column in chosen]
        order += [label for label in place[j] if label not in order]

    for j in sorted(range(len(clients)), key=lambda j: -len(clients[j])):
        put(j)
    for _ in range(how.sweeps):
        moves = 0
        for j in draw.permutation(len(clients)):
            before = [label if members(label, j) else None for label in place[j]]
            put(j)
            moves += before != [label if members(label, j) else None for label in place[j]]
        if not moves:
            break
    atoms = []
    for label in order:
        rows = members(label, None)
        total = prior / how.sigma02 * how.shrink + sum(rows) / how.sigma2
        atoms.append(total / (how.shrink / how.sigma02 + len(rows) / how.sigma2))
    return [[order.index(label) for label in labels] for labels in place], np.array(atoms)


def moved(weight, assignment, num_global):
    """Input l goes to the place of its global neuron, with its kernel or all its pixels."""
    block = weight.shape[1] // len(assignment)
    wide = torch.zeros(len(weight), num_global * block, *weight.shape[2:], dtype=weight.dtype)
    for own, place in enumerate(assignment):
        wide[:, place * block : (place + 1) * block] = weight[:, own * block : (own + 1) * block]
    return wide


def cut_out(model, assignments, k):
    """The global model in the widths and the order of client k."""
    result = []
    for n, (weight, bias) in enumerate(model):
        if n:
            block = weight.shape[1] // len(model[n - 1][1])
            columns = [a * block + i for a in assignments[n - 1][k] for i in range(block)]
            weight = weight[:, columns]
        if n < len(model) - 1:
            weight, bias = weight[assignments[n][k]], bias[assignments[n][k]]
        result.append((weight, bias))
    return result


def last_mean(layers):
    """Row c of every client weighs as its examples of class c."""
    weight, bias = torch.zeros_like(layers[0][0]), torch.zeros_like(layers[0][1])
    for c in range(3):
        for k, (own_weight, own_bias) in enumerate(layers):
            share = COUNTS[k, c] / COUNTS[:, c].sum()
            weight[c] += share * own_weight[c]
            bias[c] += share * own_bias[c]
    return weight, bias


def exchanges(setting, num_passes=2):
    """Yield after every exchange: clients' networks, the last complete model, the matched layers, their assignments."""
    data = grouped_data()
    x = [data.dataset.train.inputs[data.split.train.of(k)].double() for k in range(NUM_CLIENTS)]
    y = [data.dataset.train.labels[data.split.train.of(k)] for k in range(NUM_CLIENTS)]
    model = layers_of(seeded(partial(fresh, setting.model)).state_dict())
    starts = [model] * NUM_CLIENTS
    if setting.init == "independent":
        starts = []
        for k in range(NUM_CLIENTS):
            torch.manual_seed(derive_seed(0, "client init", k))
            starts.append(layers_of(fresh(setting.model).state_dict()))
    round_idx = 0
    for _ in range(num_passes):
        nets, matched, assignments = starts, [], []
        for n in range(len(model)):
            nets = [trained(net, n, x[k], y[k], setting.weight_decay) for k, net in enumerate(nets)]
            before = [list(net) for net in nets]
            if n == len(model) - 1:
                model = [*matched, last_mean([net[n] for net in nets])]
                starts = [cut_out(model, assignments, k) for k in range(NUM_CLIENTS)]
                yield before, model, [], []
            else:
                rows = [torch.cat([net[n][0].flatten(1), net[n][1][:, None]], 1).numpy() for net in nets]
                places, atoms = match(rows, numpy_generator(0, "matching", round_idx), setting.matching)
                found = torch.from_numpy(atoms)
                layer = (found[:, :-1].reshape(-1, *nets[0][n][0].shape[1:]), found[:, -1])
                for k, net in enumerate(nets):
                    net[n] = layer
                    net[n + 1] = (moved(net[n + 1][0], places[k], len(atoms)), net[n + 1][1])
                matched, assignments = [*matched, layer], [*assignments, places]
                yield before, model, matched, assignments
            round_idx += 1


def same(found, expected, what):
    assert len(found) == len(expected), what
    for index, (own, other) in enumerate(zip(found, expected, strict=True)):
        for left, right in zip(own, other, strict=True):
            assert left.shape == right.shape, f"{what}, layer {index}"
            np.testing.assert_allclose(left, right, rtol=0, atol=2e-5, err_msg=f"{what}, layer {index}")


def check(setting, store_dir):
    """Compare the weights of everyone after every exchange; give the widths of the global layers."""
    federation = federation_of(setting, store_dir)
    rounds = federation.rounds()
    next(rounds)
    widths = []
    for t, (nets, model, matched, assignments) in enumerate(exchanges(setting)):
        progress, _ = next(rounds)
        state = progress.state
        for k, net in enumerate(nets):
            same(layers_of(federation.store.get(k).memory.params), net, f"exchange {t}, client {k}")
        assert [[a.tolist() for a in layer] for layer in state.pending] == assignments, f"exchange {t}"
        same(layers_of(state.matched), matched, f"exchange {t}, matched")
        same(layers_of(state.model), model, f"exchange {t}, model")
        widths.append([len(bias) for _, bias in model])
    assert next(rounds, None) is None
    return widths
