"""The one shape of every network: an ordered list of named blocks, cut into encoder and head.

Two cuts matter to federated methods, and they differ: ``features`` is what the encoder gives (FedFusion fuses
it), ``representation`` is the input of the last linear layer (FedHeNN compares it, FedRep shares its body).
A dropout that ends it belongs to the last layer: it would make a network in training unlike itself.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import cast

from torch import Tensor, nn

from fedfeat.errors import ConfigError
from fedfeat.models.draws import Draw
from fedfeat.types import Vocabulary

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
"""Types of normalisation layers."""
DROPOUTS = nn.modules.dropout._DropoutNd
"""Type of dropout layers."""

Block = tuple[str, nn.Sequential]
"""A block's name (as in its paper) and its layers, named too: conv, norm, relu, pool, dropout."""

Layer = Callable[[Tensor], Tensor]


class Network(nn.Module):
    """An ordered list of named blocks, the first of them the encoder, the others the head; arguments are attributes.

    Args:
        encoder: The blocks up to the features, first to last; empty where the head does everything.
        head: The blocks from the features to the logits; the last layer of the last one is the classifier, an
            ``nn.Linear``.
        input_shape: Shape of one example without the batch dimension, (C, H, W) for images.
        num_classes: Width of the logits.

    Attributes:
        draw: How its builder draws the initial weights of a layer; None where all of them are the framework's.
        published: Names of its tensors in the library that it was taken from, with those that they have here.
        frozen: Modules that neither train nor leave eval mode (`freezing.freeze`).
        fusion: What `fusion.fuse` puts between encoder and head, or None.
        rate: Share of the channels that it has, where clients' networks are of several widths (`models.widths`).
    """

    draw: Draw | None = None
    published: Mapping[str, str] = MappingProxyType({})
    frozen: tuple[nn.Module, ...] = ()
    rate: float | None = None

    def __init__(
        self, encoder: Sequence[Block], head: Sequence[Block], input_shape: Sequence[int], num_classes: int
    ) -> None:
        super().__init__()
        names = [name for name, _ in (*encoder, *head)]
        if len(set(names)) != len(names):
            raise ConfigError.rule("model", "have blocks of different names", names)
        last = head[-1][1][-1] if head else None
        if not isinstance(last, nn.Linear):
            raise ConfigError.rule("model", "have a head that ends with an nn.Linear", last)
        self.encoder = nn.Sequential(OrderedDict(encoder))
        self.head = nn.Sequential(OrderedDict(head))
        self.input_shape = tuple(int(side) for side in input_shape)
        self.num_classes = int(num_classes)
        self.fusion: nn.Module | None = None

    def forward(self, x: Tensor, *frozen_features: Tensor) -> Tensor:
        """Give logits (B, num_classes) for inputs (B, *input_shape)."""
        return self.head(self.features(x, *frozen_features))

    def features(self, x: Tensor, *frozen_features: Tensor) -> Tensor:
        """Give what the head reads: the encoder's output, (B, C, H, W) for a convolutional network.

        Args:
            x: Inputs (B, *input_shape).
            frozen_features: Where the network has a fusion module: E_g(x), if it is known already.
        """
        local = self.encoder(x)
        return local if self.fusion is None else self.fusion(local, x, *frozen_features)

    def representation(self, x: Tensor) -> Tensor:
        """Give the input of the last linear layer, (B, d), without a dropout that ends it.

        ``last_layer`` maps it to the logits, in training after the dropout (`last_input`).
        """
        return _through(_without_last_dropout([*self._up_to_features, *self._up_to_last]), x)

    def representation_and_logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give `representation`, (B, d), and the logits, (B, num_classes), in one pass."""
        layers = [*self._up_to_features, *self._up_to_last]
        end = _end_without_dropout(layers)
        common, last = _through(layers[:end], x), layers[end:]
        return _through(_without_dropout(last), common), self.last_layer(_through(last, common))

    def feature_vector(self, x: Tensor) -> Tensor:
        """Give the features as vectors (B, d), without a dropout that ends them."""
        return _through(_without_last_dropout(self._up_to_features), x).flatten(1)

    def last_input(self, x: Tensor) -> Tensor:
        """Give what the last linear layer reads, (B, d), any dropout included."""
        return _through(self._up_to_last, self.features(x))

    @property
    def _up_to_features(self) -> list[Layer]:
        return _layers(self.encoder) if self.fusion is None else [self.features]

    @property
    def _up_to_last(self) -> list[Layer]:
        return _layers(self.head)[:-1]

    def train(self, mode: bool = True) -> "Network":
        """Change the mode of everything that is not frozen."""
        super().train(mode)
        for part in self.frozen:
            part.training = False
        return self

    def blocks(self) -> list[Block]:
        """List all blocks with their names, from input to logits."""
        named = chain(self.encoder.named_children(), self.head.named_children())
        return [(name, cast(nn.Sequential, block)) for name, block in named]

    @property
    def last_layer(self) -> nn.Linear:
        """The linear layer that gives the logits."""
        return cast(nn.Linear, self.get_submodule(self.last_layer_name))

    @property
    def last_layer_name(self) -> str:
        """Path of the last linear layer, the prefix of its parameters (``head.fc3.linear``)."""
        name, block = list(self.head.named_children())[-1]
        return f"head.{name}.{list(block._modules)[-1]}"


def _layers(blocks: nn.Sequential) -> list[Layer]:
    return list(chain.from_iterable(cast("Iterable[nn.Sequential]", blocks)))


def _without_last_dropout(layers: Sequence[Layer]) -> list[Layer]:
    """Leave dropout out where nothing follows it, or nothing but what flattens."""
    end = _end_without_dropout(layers)
    return [*layers[:end], *_without_dropout(layers[end:])]


def _end_without_dropout(layers: Sequence[Layer]) -> int:
    """Count the layers up to the last one that neither drops nor flattens."""
    end = len(layers)
    while end and isinstance(layers[end - 1], (DROPOUTS, nn.Flatten)):
        end -= 1
    return end


def _without_dropout(layers: Sequence[Layer]) -> list[Layer]:
    return [layer for layer in layers if not isinstance(layer, DROPOUTS)]


def _through(layers: Iterable[Layer], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def reading(build: Callable[..., Network], vocabulary: Vocabulary | None) -> Callable[..., Network]:
    """Give a builder the vocabulary of a text data set, or refuse a network that reads something else.

    Args:
        build: A configured model; builders of networks for text have an argument ``vocabulary``.
        vocabulary: That of the data set, or None where its inputs are no tokens.
    """
    reads_tokens = "vocabulary" in inspect.signature(build).parameters
    if reads_tokens != (vocabulary is not None):
        inputs = "numbers, such as images," if vocabulary is None else "tokens, such as sent140_lstm,"
        name = getattr(getattr(build, "func", build), "__name__", str(build))
        raise ConfigError.rule("model", f"be one that reads {inputs} as the data set has them", name)
    return partial(build, vocabulary=vocabulary) if reads_tokens else build
