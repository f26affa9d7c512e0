"""FedFusion: Yao et al., "Towards Faster and Better Federated Learning: A Feature Fusion Approach", 2019, Alg. 1.

    server: G_0 <- initial model (E, F, C);  each round: S <- sample clients
            for k in S:  send G_r;  receive L_k
            G_{r+1} <- sum_k n_k / (sum_j n_j) * L_k
            multi, single:  lambda_{r+1} <- ema * lambda_r + (1 - ema) * lambda_{r+1}
    client: E_l, F, C <- G_r;  E_g <- E of G_r, frozen
            for E epochs over batches (x, y):  step on E_l, F, C by the gradient of  loss(C(F(E_g(x), E_l(x))), y)
            return E_l, F, C

The operators F are in `models.fusion`. E_g follows from what the client received, so it is never sent. The averaging
is any server half's, for example Fed2's paired one.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from fedfeat.algorithms.versions import Versions
from fedfeat.client import ClientModule
from fedfeat.config.conditions import Number, Share
from fedfeat.errors import ConfigError, UserError
from fedfeat.models.flops import encoder_flops
from fedfeat.models.fusion import Concat, ConvInit, Fusion, LambdaFusion, Op, fuse, fusion_of
from fedfeat.models.network import Network
from fedfeat.params import full, select
from fedfeat.server import Around, AveragingServer, noting
from fedfeat.types import Federation, Setting, Update, Weights


class FusedModel(NamedTuple):
    """The server's model with an E_g that is not its E: what is evaluated, never sent.

    Attributes:
        params: E_l, F and C.
        frozen: E_g, under the names of the extractor's tensors in the network.
    """

    params: dict[str, Tensor]
    frozen: dict[str, Tensor]


class FedFusionClient(ClientModule):
    """FedAvg's client with a fusion module between encoder and head.

    Args:
        model: The network; the fusion module is put into it.
        op: ``conv``, ``multi`` or ``single``.
        lambda_init: First lambda of multi and single; 0 in thu-media/FedFusion.
        conv_init: ``default`` of the framework as in that code, or ``average``.
        conv_bias: Whether conv has a bias; there it has.
        concat: ``global_first`` as in the paper, or ``local_first`` as in that code.
        cache_eg: Compute E_g(x) once per turn and not once per epoch, as the text suggests; augmented inputs are new
            in every epoch, so then it must be off.
        arguments: As in `ClientModule`.
    """

    apart = None

    def __init__(
        self,
        *,
        model: Network,
        op: Op = "multi",
        lambda_init: Number = 0.0,
        conv_init: ConvInit = "default",
        conv_bias: bool = True,
        concat: Concat = "global_first",
        cache_eg: bool = False,
        **arguments: Any,
    ) -> None:
        fuse(model, op, lambda_init, conv_init, conv_bias, concat)
        super().__init__(model=model, **arguments)
        self.cache_eg = cache_eg
        if cache_eg:
            self.apart = "it keeps the frozen features of every example (algorithm.client.cache_eg)"
        self._num_cached = 0

    @property
    def fusion(self) -> Fusion:
        """The fusion module."""
        return cast(Fusion, fusion_of(self.model))

    def check(self, setting: Setting) -> None:
        """Refuse a cache of features where inputs are new in every epoch."""
        super().check(setting)
        if self.cache_eg and setting.augmented:
            rule = "be false for data that are augmented (data/transform)"
            raise ConfigError.rule("algorithm.client.cache_eg", rule, True)

    def receive(self, payload: Any, memory: Any) -> None:
        """Become one client; its E_g is the received E."""
        super().receive(payload, memory)
        frozen = cast(Network, self.model).encoder.state_dict()
        if isinstance(payload, FusedModel):
            frozen |= {key.removeprefix("encoder."): tensor for key, tensor in payload.frozen.items()}
        self.fusion.frozen.fill(frozen)

    @torch.no_grad()
    def prepare(self, batches: Any) -> Any:
        """Put E_g's features beside the inputs where they are cached."""
        if not self.cache_eg:
            return batches
        frozen = self.fusion.frozen
        cached = [frozen.to(inputs.device)(self.laid_out(inputs)) for inputs in batches.inputs()]
        self._num_cached = sum(map(len, cached))
        return batches.beside(torch.cat(cached))

    def forward(self, inputs: Any) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...), or of inputs with the features that E_g has of them."""
        if isinstance(inputs, Tensor):
            return super().forward(inputs)
        x, frozen_features = inputs
        return self.model(self.laid_out(x), frozen_features)

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with E_g's passes counted as often as they were made."""
        metrics = super().turn_metrics()
        if self.cache_eg:
            metrics["flops"] -= (metrics["examples"] - self._num_cached) * self._encoder_flops
        return metrics

    def observe(self) -> dict[str, Tensor]:
        """Lambda, or for conv the share of the global half in the norm of each channel's weights."""
        name = "lambda" if isinstance(self.fusion.operator, LambdaFusion) else "global_share"
        return {f"fusion/{name}": self.fusion.operator.global_part()}

    @cached_property
    def _encoder_flops(self) -> float:
        return float(encoder_flops(cast(Network, self.model)))


class FedFusionState(NamedTuple):
    """State of the server.

    Attributes:
        average: State of the server half that averages.
        frozen: The E that the last cohort had frozen, its mean where clients had several: the E_g of the evaluation.
        encoder_keys: Tensors of E, of those that are sent.
        smoothed: The tensors that are smoothed, likewise, in float32 at least.
        stale: The ``average`` and ``frozen`` that each client has, where only participants receive the newest.
    """

    average: Any
    frozen: dict[str, Tensor]
    encoder_keys: tuple[str, ...]
    smoothed: dict[str, Tensor]
    stale: Versions | None = None

    def of(self, client_id: int) -> tuple[Any, dict[str, Tensor]]:
        """Give ``average`` and ``frozen`` as a client has them."""
        return self.stale.of(client_id) if self.stale else (self.average, self.frozen)


class FedFusionServer(Around):
    """Average by another server half, then smooth lambda.

    Args:
        average: The server half that averages, over everything that clients send.
        ema: Decay of lambda's moving average, .9 in thu-media/FedFusion; 0 leaves the plain average.
        eval_eg: E_g of the evaluated model: ``prev``, the E that its clients had frozen, as in that code, which
            averages the frozen copies; or ``self``, its own E, with which multi and single disappear.
        stale_clients: Whether only the round's participants receive the new model, so that a client that is drawn
            later starts from its own older copy, as in that code; Algorithm 1 sends G_r to everyone.
    """

    def __init__(
        self,
        average: AveragingServer,
        ema: Share = 0.9,
        eval_eg: Literal["prev", "self"] = "prev",
        stale_clients: bool = False,
    ) -> None:
        super().__init__(average)
        self.ema, self.eval_eg, self.stale_clients = ema, eval_eg, stale_clients

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Take networks with a fusion module."""
        if fusion_of(model) is None:
            raise UserError(
                "algorithm/client must be fedfusion, which fuses, for algorithm/server=fedfusion."
            )
        super().check(model, setting)

    def init(self, model: nn.Module, federation: Federation) -> FedFusionState:
        """Start from the common initial model, whose E_g is its E."""
        average = self.average.init(model, federation)
        params = self.average.params(average)
        encoder = tuple(key for key in params if key.startswith("encoder."))
        smoothed = {key: full(params[key]) for key in params if key == "fusion.operator.lambdas"}
        state = FedFusionState(average, select(params, encoder), encoder, smoothed)
        first = Versions((0,) * federation.num_clients, {0: (average, state.frozen)})
        return state._replace(stale=first) if self.stale_clients else state

    def averages(self, state: FedFusionState, client_id: int | None = None) -> Any:
        """Give the newest E, F and C, or those that a stale client has."""
        return state.average if client_id is None else state.of(client_id)[0]

    def own_payload(self, state: FedFusionState, client_id: int) -> Weights | FusedModel:
        """Give what is sent, with the E_g of the evaluation (``eval_eg``)."""
        sent = self.broadcast(state, client_id)
        if self.eval_eg == "self":
            return sent
        average, frozen = state.of(client_id)
        before = self.average.with_params(average, self.average.params(average) | frozen)
        its = self.average.broadcast(before, client_id).params
        return FusedModel(sent.params, select(its, state.encoder_keys))

    def aggregate(self, state: FedFusionState, updates: Iterable[Update]) -> FedFusionState:
        """Average and smooth; a round without an update changes nothing."""
        cohort: list[tuple[int, int]] = []
        average = self.average.mean(state.average, noting(updates, cohort))
        if not cohort:
            return state
        params = self.average.params(average)
        # In half precision a moving average in lambda's own type stands still long before it is there.
        mean = {key: torch.lerp(old, full(params[key]), 1 - self.ema) for key, old in state.smoothed.items()}
        sent = {key: tensor.to(params[key].dtype) for key, tensor in mean.items()}
        average = self.average.with_params(average, params | sent)
        frozen = self._frozen(state, cohort)
        stale = state.stale and state.stale.handed_out((average, frozen), dict(cohort))
        return state._replace(average=average, frozen=frozen, smoothed=mean, stale=stale)

    def _frozen(self, state: FedFusionState, cohort: list[tuple[int, int]]) -> dict[str, Tensor]:
        """Give the E that a cohort had frozen, the mean of several by the weights of the average.

        That of G_r where the average is no weighted mean.
        """
        average = state.average
        if state.stale and self.average.weights(average, *cohort[0]) is not None:
            sent = (Update(k, count, self.broadcast(state, k), None, {}) for k, count in cohort)
            average = self.average.aggregate(average, sent)
        return select(self.average.params(average), state.encoder_keys)

    def global_payload(self, state: FedFusionState) -> Weights | FusedModel | None:
        """Give the averaged model with its E_g, where nothing of it is personal."""
        payload = self.average.global_payload(state.average)
        if payload is None or self.eval_eg == "self":
            return payload
        return FusedModel(payload.params, state.frozen)
