"""A LightningModule for many short fits."""

from typing import Any

import pytorch_lightning as pl


class QuickModule(pl.LightningModule):
    """A LightningModule that notes plain values without a search among its parameters and modules."""

    # Lightning notes the running hook 44 times a step; the others change at every step.
    _plain = frozenset({"_current_fx_name", "_loss_sum", "_num_seen"})

    def __setattr__(self, name: str, value: Any) -> None:
        """Assign as any module does."""
        if name in self._plain:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)
