"""LSTM for short texts, as FedRep's public code has it for Sentiment140."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.errors import ConfigError
from fedfeat.models.blocks import Dropout, Size, fc_blocks, named_layers
from fedfeat.models.draws import LinearLayer, drawn, zero_bias
from fedfeat.models.network import Network
from fedfeat.types import Vocabulary

INIT_RANGE = 0.1
"""Fully connected weights of ``RNNSent``, and embeddings of the word model it descends from, are in U(-0.1, 0.1)."""


class FixedEmbedding(nn.Module):
    """Look tokens up among given vectors, which belong to the data: no state to train, send or store.

    Args:
        vectors: One per token id, (size, D).
    """

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Give vectors (B, T, D) of token ids (B, T)."""
        # Dry runs bring floats of the right shape.
        return functional.embedding(ids.long(), self.vectors)


class LearnedEmbedding(nn.Embedding):
    """Trainable vectors; that of id 0, padding and unknown tokens, is zero and stays so.

    Args:
        size: Number of token ids.
        dim: Numbers in a vector, D.
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(size, dim, padding_idx=0)

    def reset_parameters(self) -> None:
        """Draw all vectors but the first anew."""
        nn.init.uniform_(self.weight, -INIT_RANGE, INIT_RANGE)
        self._fill_padding_idx_with_zero()

    def forward(self, ids: Tensor) -> Tensor:
        """Give vectors (B, T, D) of token ids (B, T)."""
        return super().forward(ids.long())  # as in `FixedEmbedding`


class Scramble(nn.Module):
    """What ``RNNSent`` does to its words: (T, B, D) read in memory order as (D, B, T), not transposed.

    The LSTM then takes D steps of T numbers, and an example's steps hold numbers of other examples of its batch, so
    that a result depends on the batch. The state that the source also carries from batch to batch is left out here.
    """

    mixes_examples = True

    def forward(self, words: Tensor) -> Tensor:
        """Give (B, D, T) for words (B, T, D)."""
        batch, num_tokens, dim = words.shape
        return words.transpose(0, 1).reshape(dim, batch, num_tokens).transpose(0, 1)


class LastOutput(nn.Module):
    """An LSTM of which the last step's output of the last layer counts; initial weights are the framework's.

    Args:
        n_in: Numbers in a step, D.
        hidden: Numbers in its output.
        num_layers: Layers, one reading the other.
    """

    def __init__(self, n_in: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, hidden, num_layers, batch_first=True)

    def forward(self, steps: Tensor) -> Tensor:
        """Give (B, hidden) for steps (B, T, D)."""
        with self._differentiable():
            return self.lstm(steps)[0][:, -1]

    def _differentiable(self) -> AbstractContextManager[None]:
        # cuDNN has no gradients of an LSTM in evaluation mode, in which own models are made and neurons looked at.
        if self.training or not torch.is_grad_enabled():
            return nullcontext()
        return torch.backends.cudnn.flags(enabled=False)


def sent140_lstm(
    input_shape: Sequence[int],
    num_classes: int,
    vocabulary: Vocabulary,
    mode: Literal["correct", "reference"] = "correct",
    num_layers: Size = 1,
    embed_dim: Size = 300,
    hidden: Size = 128,
    fc_width: Size = 10,
    dropout: Dropout = 0.5,
) -> Network:
    """Build embed, lstm, fc1, fc2; the encoder is the first two.

    Source: Collins et al. 2021, ``RNNSent`` in lgcollins/FedRep. The representation is fc1's output after its ReLU
    and before its dropout, the features are the LSTM's last output. A tweet shorter than T tokens ends in zero
    vectors, as there.

    Args:
        input_shape: (T,), the number of tokens.
        num_classes: Number of classes.
        vocabulary: The data set's tokens; vectors, where it has them, are fixed, else the network learns its own.
        mode: ``correct``, a step of the LSTM is a token, or ``reference``, see `Scramble`.
        num_layers: Layers of the LSTM; 1 in the source, 1 or 2 in FedHeNN.
        embed_dim: Size of learned vectors; 300 as GloVe's there.
        hidden: Size of the LSTM's output.
        fc_width: Size of fc1.
        dropout: Dropout after fc1.
    """
    if len(input_shape) != 1:
        raise ConfigError(
            f"model sent140_lstm needs inputs of shape (T,), but the data set gives {tuple(input_shape)}."
        )
    fixed = vocabulary.vectors
    dim = embed_dim if fixed is None else fixed.shape[1]
    embedding = LearnedEmbedding(vocabulary.size, dim) if fixed is None else FixedEmbedding(fixed)
    scrambled = mode == "reference"
    lstm = LastOutput(input_shape[0] if scrambled else dim, hidden, num_layers)
    encoder = [
        ("embed", named_layers([("embedding", embedding), ("scramble", Scramble() if scrambled else None)])),
        ("lstm", named_layers([("last", lstm)])),
    ]
    head = fc_blocks(hidden, (fc_width,), num_classes, dropout=(dropout,))
    return drawn(Network(encoder, head, input_shape, num_classes), _draw)


def _draw(layer: nn.Module) -> None:
    if isinstance(layer, LinearLayer):
        nn.init.uniform_(layer.weight, -INIT_RANGE, INIT_RANGE)
        zero_bias(layer)
