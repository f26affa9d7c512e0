"""FedRep: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", 2021, Algorithm 1.

    server: phi <- initial body;  each round: S <- sample clients
            for k in S:  send phi;  receive phi_k
            phi <- mean of phi_k over S
    client: its head h_k comes from its memory, phi_k <- phi
            for tau_h epochs:  step on h_k with phi_k frozen
            for tau_b epochs:  step on phi_k with h_k frozen
            keep h_k;  return phi_k

The head never leaves the client: it is personal, and a personal tensor enters no payload. tau_h + tau_b is
``federation.local_epochs``.
"""

from fedfeat.algorithms.alternating import AlternatingClient


class FedRepClient(AlternatingClient):
    """Clients with heads h_k of their own on a common body; ``head_epochs`` is tau_h.

    Args:
        arguments: As in `AlternatingClient`; ``personal`` names the head.
    """
