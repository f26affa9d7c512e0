"""pFedMe: Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, Algorithm 1.

    server: w <- (1 - beta) * w + beta * mean of w_k
    client: w_k, theta_k <- w^t
            for E epochs over batches b:
                K times:  theta_k <- theta_k - inner_lr * (grad F_k(theta_k; b) + lam * (theta_k - w_k) + mu * theta_k)
                w_k <- w_k - lr * lam * (w_k - theta_k)
            keep theta_k;  return w_k

theta_k is the client's model. lam * (w_k - theta_k) is the gradient of the Moreau envelope of F_k at w_k, so
the optimizer's step is the one on w_k; theta_k goes with it in a group of its own, whose steps end where the K ended.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedfeat.algorithms.own_models import OwnModel, gradient_at, refuse_personal
from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import Count, NotNegative, Positive
from fedfeat.errors import ConfigError
from fedfeat.models.clipping import Bound
from fedfeat.models.freezing import has_batch_norm
from fedfeat.params import copy_into, full, snapshot, trained_names
from fedfeat.server import Around
from fedfeat.types import Federation, Params, Setting, Site, Tensors, Turn, Update, Weights


class PFedMeClient(ClientModule):
    """Clients that solve for a model of their own near w_k on every batch, and move w_k towards it.

    Args:
        lam: Weight of the distance between the two; 15 in the public code.
        inner_steps: K; 5 in that code.
        inner_lr: Learning rate of the K steps; the schedule of the rounds does not change it. They diverge where it is
            above 2 / (lam + the largest curvature of F_k).
        mu: Decay in the K steps; .001 in that code, nothing in the paper.
        arguments: As in `ClientModule`.
    """

    keeps_model = True
    apart: str | None = None  # theta_k is trained as w_k is, so turns can be stacked

    def __init__(
        self,
        *,
        lam: Positive = 15.0,
        inner_steps: Count = 5,
        inner_lr: Positive = 0.03,
        mu: NotNegative = 0.0,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        refuse_personal("pFedMe", arguments.get("personal", ()))
        self.lam, self.inner_steps, self.inner_lr, self.mu = lam, inner_steps, inner_lr, mu
        if has_batch_norm(self.model):
            self.apart = "its inner steps move the statistics of batch norm, and a stacked step moves them once (model)"
        self.theta = deepcopy(self.model)
        self._initial = snapshot(self.model)
        self._weights = {name for name, _ in self.model.named_parameters()}
        self._trained = trained_names(self.model)

    def check(self, setting: Setting) -> None:
        """Refuse optimizers that know no plain step, which is what moves theta_k."""
        super().check(setting)
        found = type(self.configure_optimizers())
        if found is not torch.optim.SGD:
            rule = f"be one of torch.optim.SGD for algorithm={setting.algorithm}"
            raise ConfigError.rule("optimizer", rule, found.__name__)

    def receive(self, payload: Weights, memory: OwnModel | None) -> None:
        """Take w^t, where theta_k starts too."""
        super().receive(payload, memory)
        copy_into(self.theta, payload.params)

    def recall(self, payload: Weights | None, memory: OwnModel | None) -> None:
        """Take theta_k of the last turn."""
        for network in (self.model, self.theta):
            copy_into(network, memory.params if memory else self._initial)

    def loss(self, batch: Batch) -> Tensor:
        """``F_k + lam / 2 * ||w - theta||^2`` at the theta that the K steps give; its gradient is that of w alone.

        The gradient by theta is the step that these have made.
        """
        w, start = (dict(network.named_parameters()) for network in (self.model, self.theta))
        solved, value = self._solved({name: w[name].detach() for name in self._trained}, batch)
        pull = [(w[name] - solved[name]).square().sum() for name in self._trained]
        steps = [(start[name] - solved[name]).square().sum() for name in self._trained]
        step = 0.5 * torch.stack(steps).sum()
        return value + 0.5 * self.lam * torch.stack(pull).sum() + step - step.detach()

    def _solved(self, w: dict[str, Tensor], batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Give theta after the K steps, and F_k of the batch at the last of them."""
        inputs, labels = self.laid_out(batch[0]), batch[1]
        own = dict(self.theta.named_parameters())
        theta = {name: own[name].detach() for name in self._trained}
        for _ in range(self.inner_steps):
            slopes, value = gradient_at(
                self.theta, theta, inputs, lambda logits: self.cross_entropy(logits, labels)
            )
            theta = {
                name: v - self.inner_lr * (slopes[name] + self.lam * (v - w[name]) + self.mu * v)
                for name, v in theta.items()
            }
        return theta, value

    def configure_optimizers(self) -> Optimizer:
        """Lightning hook: the optimizer of w_k, with theta_k in a group whose steps are its gradients."""
        theta = [parameter for parameter in self.theta.parameters() if parameter.requires_grad]
        try:
            self.theta.requires_grad_(False)
            optimizer = super().configure_optimizers()
        finally:
            for parameter in theta:
                parameter.requires_grad_(True)
        plain = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
        optimizer.add_param_group({"params": theta, "lr": 1.0, **plain})
        return optimizer

    def clip(self, gradients: Params, bound: Bound, tensors: Params) -> None:
        """Clip the gradient of w_k, which is one; theta_k has made its steps."""
        bound([name for name in gradients if name.startswith("model.")])

    def predict(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...) by theta_k."""
        return self.theta(self.laid_out(inputs))

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Weights, OwnModel]:
        """Give w_k, with the statistics of a batch norm, which theta_k has passed; keep theta_k."""
        w, theta = tensors["model"], tensors["theta"]
        sent = {key: (w if key in self._weights else theta)[key] for key in self.shared_keys}
        # What is sent is never what is kept.
        sent |= {key: sent[key].clone() for key in sent if key not in self._weights}
        return Weights(sent), OwnModel(theta)

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the K passes over each batch."""
        metrics = super().turn_metrics()
        metrics["flops"] *= self.inner_steps
        return metrics


class PFedMeServer(Around):
    """Move a share of the way to the average of another server half.

    Args:
        average: The server half that averages.
        beta: The share; 1 is the average itself.
    """

    def __init__(self, beta: Positive = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.beta = beta

    def setup(self, site: Site) -> None:
        """Note which tensors are buffers, at every start of a run."""
        super().setup(site)
        network = site.networks.build()
        self._buffers = frozenset(network.state_dict()) - {name for name, _ in network.named_parameters()}

    def init(self, model: nn.Module, federation: Federation) -> Any:
        """Start as the average does, whose state this is."""
        return self.average.init(model, federation)

    def averages(self, state: Any, client_id: int | None = None) -> Any:
        """Give the state, which is the average's."""
        return state

    def aggregate(self, state: Any, updates: Iterable[Update]) -> Any:
        """``(1 - beta) * w + beta * mean``; buffers are the average's, for statistics are no steps."""
        if self.beta == 1.0:
            return self.average.aggregate(state, updates)
        new = self.average.mean(state, updates)
        old, mean = self.average.params(state), self.average.params(new)
        moved = {
            key: tensor if key in self._buffers else _between(old[key], tensor, self.beta)
            for key, tensor in mean.items()
        }
        return self.average.with_params(new, moved)


def _between(old: Tensor, mean: Tensor, share: float) -> Tensor:
    """Go a share of the way, in full precision; where there is none to go, nothing moves."""
    return torch.lerp(full(old), full(mean), share).to(mean.dtype)
