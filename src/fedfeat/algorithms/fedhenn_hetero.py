"""FedHeNN for clients of any architectures: Makhija et al., ICML 2022, Algorithm 2. Its client half is `fedhenn`'s.

    server: each round t:  X_t <- m unlabelled inputs;  Kbar <- 1/N sum_j K(A_j);  send Kbar, X_t to the cohort
    client: w_k is its own;  minimise  F_k(w_k) + eta_t * (1 - CKA(K(A_k), Kbar))

A client's upload is its weights, as in the paper, where the server computes K_j with them. Here that happens where the
client's turns run, on the same weights from its memory, and the server sums the kernels up.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from fedfeat.algorithms.fedhenn import AlignedWeights, FedHeNNState
from fedfeat.algorithms.shared_inputs import SharedInputsServer
from fedfeat.config.conditions import Positive
from fedfeat.features.kernels import Kernel, KernelMean, KernelName, KernelNorm, gaussian_kernel
from fedfeat.types import Answer, Federation, Survey, Update

KbarOver = Literal["all", "participants", "last_participants"]
ASKED: dict[KbarOver, Literal["all", "cohort"]] = {"all": "all", "participants": "cohort"}


class FedHeNNHeteroServer(SharedInputsServer):
    """Clients of any architecture, who share nothing but the mean of their kernels.

    Args:
        kernel: ``linear`` or ``rbf``; the clients' own.
        sigma_factor: Of rbf.
        kernel_norm: ``none`` (the paper's plain mean), or ``fro``: no client counts more for the scale of its kernel.
        kbar_over: Whose networks, as they are before the round's fits, give Kbar. ``all`` clients' (Algorithm 2); those
            of the round's ``participants``, a client's own among them; or of the ``last_participants``, those of the
            round before as they have come out of it, as in dishamakhija/FedHeNN: the first round has no term then.
        arguments: As in `SharedInputsServer`.
    """

    payload_type: ClassVar[type] = AlignedWeights
    accepts_unequal = True

    def __init__(
        self,
        kernel: KernelName = "linear",
        sigma_factor: Positive = 0.4,
        kernel_norm: KernelNorm = "none",
        kbar_over: KbarOver = "all",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.kernel, self.sigma_factor, self.kernel_norm = kernel, sigma_factor, kernel_norm
        self.kbar_over = kbar_over

    def init(self, model: nn.Module, federation: Federation) -> FedHeNNState:
        """Start without anything common."""
        return FedHeNNState(0)

    def survey(self, state: FedHeNNState, round_idx: int) -> Survey | None:
        """Share X_t in rounds whose term has a weight, and ask those over whom Kbar is."""
        found = super().survey(state, round_idx)
        asked = state.trained if self.kbar_over == "last_participants" else ASKED[self.kbar_over]
        return found._replace(asked=asked) if found and asked else None

    def hear(self, state: FedHeNNState, inputs: Tensor, answers: Iterable[Answer]) -> FedHeNNState:
        """Sum the clients' kernels up as they come; where nobody is heard, the round goes without the term."""
        mean = KernelMean(self.kernel_norm)
        for answer in answers:
            mean.add(self._kernel(answer.payload))
        return state if mean.is_empty else state._replace(inputs=inputs, target=mean.result())

    def _kernel(self, centred: Kernel) -> Kernel:
        if self.kernel == "linear":
            return centred
        return gaussian_kernel(centred, self.sigma_factor)

    def broadcast(self, state: FedHeNNState, client_id: int) -> AlignedWeights:
        """Send Kbar and X_t."""
        return AlignedWeights({}, state.inputs, state.target, self.eta(state.round_idx))

    def aggregate(self, state: FedHeNNState, updates: Iterable[Update]) -> FedHeNNState:
        """Let the clients keep what they have, and drop X_t."""
        trained: tuple[int, ...] = ()
        if self.kbar_over == "last_participants":
            # Where every fit of a round has failed, those of the round before are still the last.
            trained = tuple(update.client_id for update in updates) or state.trained
        return FedHeNNState(state.round_idx + 1, trained=trained)

    def global_payload(self, state: FedHeNNState) -> None:
        """There is no common model."""

    def newcomer_payload(self, state: FedHeNNState) -> AlignedWeights:
        """Give nothing: a client starts from its own initial model."""
        return AlignedWeights({})
