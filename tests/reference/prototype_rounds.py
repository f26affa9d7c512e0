"""Turns of clients with prototypes in plain torch, float64: a perceptron with one hidden layer, full batches."""

import torch
from harness import OwnTests, examples_of, make_data
from torch.nn import functional

from fedfeat.data import transforms
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import Parts
from fedfeat.models.mlp import mlp

W1, B1, W2, B2 = NAMES = tuple(
    f"{block}.linear.{kind}" for block in ("encoder.fc1", "head.fc2") for kind in ("weight", "bias")
)
HIDDEN, NUM_CLASSES = 5, 3
DOUBLE = {"precision": "64-true"}
LR, MOMENTUM = 0.3, 0.5


def two_layers(dropout=0.0, hidden=(HIDDEN,)):
    """The common initial model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return mlp((4,), 3, hidden=list(hidden), dropout=dropout)


def initial():
    """Its tensors in float64."""
    return {name: tensor.double() for name, tensor in two_layers().state_dict().items()}


def split_by_class(*classes_of_clients):
    """The harness's 16 examples with clients that have some classes; client k lacks the last k examples of each."""
    whole = make_data()
    labels = whole.dataset.train.labels
    parts = [
        torch.cat([(labels == c).nonzero().flatten()[: max(int((labels == c).sum()) - k, 1)] for c in own])
        for k, own in enumerate(classes_of_clients)
    ]
    sizes = torch.tensor([0, *map(len, parts)]).cumsum(0).numpy()
    split = whole.split._replace(train=Parts(torch.cat(parts).numpy(), sizes))
    empty = split.val._replace(offsets=sizes * 0)
    return FederatedData(
        whole.dataset, split._replace(val=empty, test=OwnTests(len(parts), 6)), transforms.none()
    )


def own_examples(data, k):
    """Inputs (n, 4), float64, and labels (n,) of a client."""
    x, y = examples_of(data, k)
    return torch.from_numpy(x), torch.from_numpy(y)


def hidden_of(params, x):
    """What the last layer reads."""
    return (x @ params[W1].T + params[B1]).relu()


def logits_of(params, x):
    """The head's logits."""
    return hidden_of(params, x) @ params[W2].T + params[B2]


def means_of(params, x, y):
    """Class means of what the last layer reads, by class."""
    return {c: hidden_of(params, x[y == c]).mean(0) for c in y.unique().tolist()}


def trained(params, x, y, num_steps, *, lam=0.0, prototypes=None, lr=LR):
    """Steps on the cross-entropy and the pull, one example at a time."""
    params, velocity = dict(params), {name: 0.0 for name in params}
    for _ in range(num_steps):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        z = hidden_of(leaves, x)
        loss = functional.cross_entropy(logits_of(leaves, x), y)
        for i, c in enumerate(y.tolist()):
            if prototypes and c in prototypes:
                loss = loss + lam * ((z[i] - prototypes[c]) ** 2).sum() / z.shape[1] / len(y)
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        for name, slope in zip(leaves, slopes, strict=True):
            velocity[name] = MOMENTUM * velocity[name] + slope
            params[name] = params[name] - lr * velocity[name]
    return params


def nearest(params, x, prototypes):
    """Logits by minus the distance to each prototype there is."""
    found = torch.full((len(x), NUM_CLASSES), -torch.inf, dtype=torch.float64)
    for c, prototype in prototypes.items():
        found[:, c] = -((hidden_of(params, x) - prototype) ** 2).sum(1).sqrt()
    return found


def assert_own(record, k, logits, labels):
    """A client's row has the accuracy and the loss of these logits on the test set."""
    row = next(row for row in record.clients if row.client_id == k)
    assert abs(row.personal_acc - (logits.argmax(1) == labels).double().mean().item()) < 1e-9
    expected = functional.cross_entropy(logits, labels).item()
    assert row.personal_loss == expected or abs(row.personal_loss - expected) < 1e-9


def assert_prototypes(found, expected, tolerance=1e-12):
    """Classes and means (m, d) are those of a dictionary."""
    assert found.classes.tolist() == sorted(expected)
    for mean, c in zip(found.means, sorted(expected), strict=True):
        torch.testing.assert_close(mean, expected[c], rtol=0, atol=tolerance)
