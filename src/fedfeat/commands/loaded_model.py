"""A network of a run that was read back: its logits, its predictions, its features."""

from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfeat.client import ClientModule
from fedfeat.clients.local_trainer import LocalTrainer
from fedfeat.params import copy_into, full


class Model:
    """A network of a run in eval mode. ``model(inputs)`` gives logits (B, C).

    Inputs (B, ...) are as the data set stores them (images: uint8), or as the network reads them (float).

    Attributes:
        module: The client half around it; ``module.model`` is the network.
        classes: Names of the classes; their order gives the ids.
    """

    def __init__(
        self,
        module: ClientModule,
        classes: tuple[str, ...],
        logits: Callable[[Tensor], Tensor],
        read: Callable[[Tensor], Tensor],
        trainer: LocalTrainer,
        batch_size: int,
    ) -> None:
        self.module, self.classes = module.eval(), classes
        self._logits, self._read, self._trainer, self._batch_size = logits, read, trainer, batch_size

    def __call__(self, inputs: Tensor | np.ndarray) -> Tensor:
        """Give logits (B, C), float32, or float64 where the run computed in it."""
        return self._passed(self._logits, inputs)

    def predict(self, inputs: Tensor | np.ndarray) -> Tensor:
        """Give the ids (B,) of the most likely classes."""
        return self(inputs).argmax(1)

    def features(self, inputs: Tensor | np.ndarray) -> Tensor:
        """Give what the network's last layer reads, (B, d), in the precision of logits.

        Under FedFusion these are the network's own, before they are fused with the global extractor's.
        """
        return self._passed(self._represented, inputs)

    @torch.no_grad()
    def _passed(self, function: Callable[[Tensor], Tensor], inputs: Tensor | np.ndarray) -> Tensor:
        device = self.module.device
        parts = torch.as_tensor(inputs, device=device).split(self._batch_size)
        with self._trainer.autocast(device):
            return torch.cat([full(function(self._read(part))) for part in parts])

    def _represented(self, x: Tensor) -> Tensor:
        return self._own_network.representation(self.module.laid_out(x))

    @cached_property
    def _own_network(self) -> Any:
        """The network as the method has it for this model, where that is another one than the module's."""
        own = self.module.own_tensors()
        if not own:
            return self.module.model
        network = deepcopy(self.module.model)
        copy_into(network, own)
        return network
