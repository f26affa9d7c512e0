"""Records of the matching of neurons, see `features.matching`."""

from typing import NamedTuple

from torch import Tensor


class Prior(NamedTuple):
    """Prior of a global neuron.

    Attributes:
        mean: (d,).
        precision: Of each entry (d,), or of all of them (1,); those of clients have the same shape.
    """

    mean: Tensor
    precision: Tensor


class Evidence(NamedTuple):
    """What is known of neurons: their weights times the precision, and the precision.

    Attributes:
        sums: A client's (L_j, d), or (d,) of the prior.
        precision: Of each entry (d,), or of all of them (1,).
    """

    sums: Tensor
    precision: Tensor


class Atoms(NamedTuple):
    """Global neurons while clients are matched to them.

    Attributes:
        sums: Evidence of prior and matched rows (L, d).
        precisions: Their precisions, added up, (L, d) or (L, 1).
        counts: Matched rows, int64 (L,).
    """

    sums: Tensor
    precisions: Tensor
    counts: Tensor


class Matched(NamedTuple):
    """What the matching of one layer found.

    Attributes:
        assignments: For each client the global neuron of each of its neurons, no two the same, int64 (L_j,).
        rows: The global neurons (L, d).
        counts: How many clients have each global neuron, from 1, int64 (L,).
    """

    assignments: tuple[Tensor, ...]
    rows: Tensor
    counts: Tensor
