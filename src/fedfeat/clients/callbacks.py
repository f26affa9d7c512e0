"""Lightning callbacks of local fits."""

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import WeightAveraging as LightningAveraging
from torch import Tensor

if TYPE_CHECKING:
    from fedfeat.client import ClientModule


class MeanLoss(pl.Callback):
    """Gives callbacks such as early stopping the mean loss of an epoch to look at."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Lightning hook: note the loss of a batch."""
        size, module = len(batch[1]), cast("ClientModule", pl_module)
        loss = outputs["loss"] * module.batches_of_step(batch_idx)  # by which it was divided
        pl_module.log("train/loss", loss, on_step=False, on_epoch=True, sync_dist=True, batch_size=size)


class WeightAveraging(LightningAveraging):
    """Leaves the moving average of the weights and statistics over the steps of a fit in the place of the last ones.

    Lightning's ``EMAWeightAveraging`` also averages whole numbers, such as the rows of a group, and moves what stays
    as it is, such as frozen weights, by what rounding leaves.

    Args:
        decay: What the average keeps of itself at a step.
    """

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__(avg_fn=partial(_averaged, decay))


def _averaged(decay: float, average: Tensor, now: Tensor, num_averaged: Tensor | int) -> Tensor:
    if not now.is_floating_point():
        return now
    return torch.where(average == now, now, decay * average + (1 - decay) * now)
