"""What the tests of kernels and of CKA share."""

import torch
from hypothesis import settings
from torch.utils._python_dispatch import TorchDispatchMode

few = settings(max_examples=40, deadline=None)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def centring(m):
    return torch.eye(m, dtype=torch.float64) - 1 / m


def doubly_centred(matrix):
    return centring(len(matrix)) @ matrix @ centring(len(matrix))


class Shapes(TorchDispatchMode):
    """Notes the shape of every tensor that an operation gives."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen |= {
            tuple(t.shape) for t in (out if isinstance(out, (tuple, list)) else (out,)) if torch.is_tensor(t)
        }
        return out
