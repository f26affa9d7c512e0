"""Rows of group-separated tensors: which of the whole network's a client has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfeat.models.grouped_layers import ClassSets

if TYPE_CHECKING:
    from fedfeat.types import Params

Rows = dict[str, Tensor]
"""For each grouped tensor, an index into its first dimension, or the group of each of its entries."""


def rows_of(group_of_row: Mapping[str, Tensor], sets: ClassSets, own: ClassSets) -> Rows | None:
    """Give where a client's rows stand in the whole tensors: groups pair by class set, not by position.

    Args:
        group_of_row: For each grouped tensor of the whole network, the group of each entry of its first dimension.
        sets: The classes of the whole network's groups.
        own: Those of the client's groups, in the client's order.

    Returns:
        For each grouped tensor, the whole's rows in the client's order; None if they are all of them in order.
    """
    if own == sets:
        return None
    places = [sets.index(classes) for classes in own]
    return {
        key: torch.cat([torch.nonzero(groups == place).flatten() for place in places])
        for key, groups in group_of_row.items()
    }


def take_rows(params: Params, rows: Rows | None) -> Params:
    """Give a client's part of the whole tensors; tensors without groups pass through."""
    if rows is None:
        return params
    return {key: value[rows[key]] if key in rows else value for key, value in params.items()}
