"""Layers in which groups of neurons never meet: group g's outputs read group g's inputs only (Fed2 Eqs. 13-14).

The neurons of a layer are ordered by group. Every layer with parameters knows the group of each entry of the first
dimension of its parameters (``group_of_row``), which is all that paired averaging and trimming need.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn

from fedfeat.models.grouped_conv import like_conv, own_groups

ClassSets = tuple[tuple[int, ...], ...]
"""The classes of each group."""


class GroupedLinear(nn.Module):
    """As many independent linear maps as groups, in one batched product: (B, G * d) to (B, G * d').

    Args:
        groups: G.
        in_features: d, per group.
        out_features: d', per group.
        bias: Whether there are biases.
    """

    bias: nn.Parameter | None

    def __init__(self, groups: int, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.groups, self.in_features, self.out_features = groups, in_features, out_features
        self.weight = nn.Parameter(torch.empty(groups, out_features, in_features))
        self.register_parameter("bias", nn.Parameter(torch.empty(groups, out_features)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases as ``nn.Linear`` does for every single map."""
        bound = self.in_features**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, G * d) to (B, G * d')."""
        by_group = x.view(len(x), self.groups, self.in_features).transpose(0, 1)
        return _products(self.bias, by_group, self.weight).transpose(0, 1).flatten(1)

    def extra_repr(self) -> str:
        """Sizes, for printing."""
        return f"groups={self.groups}, in_features={self.in_features}, out_features={self.out_features}"


class ClassLinear(nn.Linear):
    """The last layer: the logit of a class reads the features of its group alone (Fed2 Eq. 16).

    Weights (n, d) and biases (n,) have one row per class that some group holds, ordered by group. Classes that no
    group holds get the logit -inf, which a softmax leaves out.

    Args:
        class_sets: The classes of each group.
        in_features: d of each group; a single one if all of them read the same features.
        num_classes: Width of the logits.
        bias: Whether there are biases.
    """

    def __init__(
        self, class_sets: ClassSets, in_features: Sequence[int], num_classes: int, bias: bool = True
    ) -> None:
        held = [c for classes in class_sets for c in classes]
        super().__init__(max(in_features), len(held), bias)
        self.num_classes, self.widths = num_classes, list(in_features)
        self.groups = len(in_features)
        self.rows_of_groups = [len(classes) for classes in class_sets]
        self._even = len(set(self.rows_of_groups)) == 1 and len(set(in_features)) == 1
        self._complete = held == list(range(num_classes))
        self._owner = [g for g, classes in enumerate(class_sets) for _ in classes]
        self._classes: Tensor
        self.register_buffer("_classes", torch.tensor(held), persistent=False)
        # Groups narrower than the widest (width_policy=uneven) have zeros behind their weights.
        self._mask: Tensor | None
        self.register_buffer("_mask", self._narrow_groups(), persistent=False)
        if self._mask is not None:
            with torch.no_grad():
                self.weight.mul_(self._mask)

    def _narrow_groups(self) -> Tensor | None:
        if len(set(self.widths)) == 1:
            return None
        inside = [[float(i < self.widths[g]) for i in range(self.in_features)] for g in self._owner]
        return torch.tensor(inside)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, sum of d) to logits (B, num_classes)."""
        logits = self._held_logits(x)
        if self._complete:
            return logits
        missing = logits.new_full((len(x), self.num_classes), -torch.inf)
        return missing.index_copy(1, self._classes, logits)

    def _held_logits(self, x: Tensor) -> Tensor:
        if self.groups == 1:
            return super().forward(x)
        if self._even:
            by_group = x.view(len(x), self.groups, -1).transpose(0, 1)
            weight = self.weight.view(self.groups, -1, self.in_features)
            bias = None if self.bias is None else self.bias.view(self.groups, -1)
            return _products(bias, by_group, weight).transpose(0, 1).flatten(1)
        groups = nn.utils.rnn.pad_sequence([part.t() for part in x.split(self.widths, 1)], batch_first=True)
        of_class = groups[self._owner]  # (n, d, B)
        weight = self.weight if self._mask is None else self.weight * self._mask
        logits = torch.bmm(weight[:, None], of_class)[:, 0].t()
        return logits if self.bias is None else logits + self.bias


def _products(bias: Tensor | None, by_group: Tensor, weight: Tensor) -> Tensor:
    """Map (G, B, d) by weights (G, d', d) and biases (G, d') to (G, B, d')."""
    if bias is None:
        return torch.bmm(by_group, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], by_group, weight.transpose(1, 2))


class Runs(nn.Module):
    """Several grouped layers side by side, each over a run of groups of equal widths.

    One kernel needs equal groups; a width that G does not divide gives at most three runs.

    Args:
        layers: One layer per run.
        widths: Channels (or features) that each of them reads.
    """

    def __init__(self, layers: Sequence[nn.Module], widths: Sequence[int]) -> None:
        super().__init__()
        self.runs = nn.ModuleList(layers)
        self.widths = list(widths)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, sum of widths, ...) run by run and join the outputs along the channels."""
        parts = x.split(self.widths, 1)
        return torch.cat([layer(part) for layer, part in zip(self.runs, parts, strict=True)], 1)


class TakeChannels(nn.Module):
    """Some channels of the input, in a given order: what a trimmed network reads of the shared features.

    Args:
        index: The channels (or features) to take.
    """

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.index: Tensor
        self.register_buffer("index", index, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, ...) to (B, len(index), ...)."""
        return x.index_select(1, self.index)


def grouped_conv(conv: nn.Conv2d, widths_in: Sequence[int], widths_out: Sequence[int]) -> nn.Module:
    """Build the group-separated form of a convolution.

    Args:
        conv: The convolution as it was; kernel, stride, padding, dilation and bias are its, and groups of its own
            (depthwise, ResNeXt) stay as small as they are.
        widths_in: Input channels of each group.
        widths_out: Output channels of each group.
    """

    def make(groups: int, n_in: int, n_out: int) -> nn.Module:
        return like_conv(conv, groups * n_in, groups * n_out, groups * own_groups(conv, n_in, n_out))

    return _by_runs(make, widths_in, widths_out)


def grouped_linear(widths_in: Sequence[int], widths_out: Sequence[int], bias: bool = True) -> nn.Module:
    """Build independent linear maps from ``widths_in[g]`` to ``widths_out[g]`` features."""
    return _by_runs(partial(GroupedLinear, bias=bias), widths_in, widths_out)


def grouped_norm(widths: Sequence[int]) -> nn.Module:
    """Build a group normalisation over each group's channels, eps 1e-5 and affine (methods/fed2.md#normalisation)."""
    return _by_runs(lambda groups, n_in, _: nn.GroupNorm(groups, groups * n_in), widths, widths)


def depthwise_conv(conv: nn.Conv2d, widths: Sequence[int]) -> nn.Module:
    """Build a depthwise convolution over the channels of all groups."""
    total = sum(widths)
    return owned(like_conv(conv, total, total, total), widths)


def fan_out_conv(conv: nn.Conv2d, n_in: int, widths_out: Sequence[int]) -> nn.Module:
    """Build a convolution whose groups all read the whole input (``boundary=dense``)."""
    return owned(like_conv(conv, n_in, sum(widths_out)), widths_out)


def fan_out_linear(n_in: int, widths_out: Sequence[int], bias: bool = True) -> nn.Module:
    """Build a linear layer whose groups all read the whole input (``boundary=dense``)."""
    return owned(nn.Linear(n_in, sum(widths_out), bias), widths_out)


def owned(layer: nn.Module, widths: Sequence[int], first: int = 0) -> nn.Module:
    """Note in a layer which group each entry of the first dimension of its parameters belongs to.

    Args:
        layer: The layer.
        widths: Entries of each group, in order.
        first: Number of the first of these groups.
    """
    rows = [group for group, width in enumerate(widths, start=first) for _ in range(width)]
    layer.group_of_row = torch.tensor(rows, device="cpu")
    return layer


def group_rows(network: nn.Module) -> dict[str, Tensor]:
    """Give, for every tensor that belongs to groups, the group of each entry of its first dimension.

    Running statistics of a batch norm belong to groups as its scale does; its counter of batches does not.
    """
    return {
        f"{prefix}.{name}": layer.group_of_row
        for prefix, layer in network.named_modules()
        if isinstance(getattr(layer, "group_of_row", None), Tensor)
        for name, tensor in layer.state_dict().items()
        if tensor.dim()
    }


def _by_runs(
    make: Callable[[int, int, int], nn.Module], widths_in: Sequence[int], widths_out: Sequence[int]
) -> nn.Module:
    layers, reads, first = [], [], 0
    for groups, n_in, n_out in _runs(widths_in, widths_out):
        layer = make(groups, n_in, n_out)
        rows = 1 if isinstance(layer, GroupedLinear) else n_out
        layers.append(owned(layer, [rows] * groups, first))
        reads.append(groups * n_in)
        first += groups
    return layers[0] if len(layers) == 1 else Runs(layers, reads)


def _runs(widths_in: Sequence[int], widths_out: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    for (n_in, n_out), run in groupby(zip(widths_in, widths_out, strict=True)):
        yield len(list(run)), n_in, n_out
