"""What a server hears of clients before the fits of a round, about inputs that it shares."""

from collections.abc import Iterator
from typing import Any

from fedfeat.clients.tasks import Task, Turns
from fedfeat.data.federated import FederatedData
from fedfeat.errors import ClientError
from fedfeat.executors.base import Executor, survivor
from fedfeat.rounds.exchange import broadcast
from fedfeat.rounds.plan import Plan
from fedfeat.rounds.tally import Tally
from fedfeat.runs.client_store import ClientStore
from fedfeat.server import Server
from fedfeat.tree import ByteCounter, num_bytes
from fedfeat.types import Answer


def surveyed(
    plan: Plan,
    server: Server,
    executor: Executor,
    data: FederatedData,
    store: ClientStore,
    state: Any,
    round_idx: int,
    cohort: tuple[int, ...],
    tally: Tally,
) -> Any:
    """Let the server share unlabelled inputs and hear the clients about them, where its method does.

    Args:
        plan: How the rounds go.
        server: The server half.
        executor: Where clients answer.
        data: The federation's data.
        store: What clients keep.
        state: The server's state at the start of the round.
        round_idx: The round.
        cohort: Who fits in it.
        tally: Counts what is sent, received and computed.

    Returns:
        The state from which the fits of the round start.
    """
    survey = server.survey(state, round_idx)
    if survey is None:
        return state
    inputs = data.unlabelled(survey, plan.seed, round_idx)
    groups = {"none": (), "cohort": cohort, "all": plan.able}
    asked = survey.asked if isinstance(survey.asked, tuple) else groups[survey.asked]
    bytes_of = ByteCounter()

    def make(client_id: int) -> Task:
        payload = sent(server, state, client_id, tally, bytes_of) if survey.sends else None
        return Task(client_id, round_idx, payload, store.get(client_id))

    def counted(results: Iterator[Answer | ClientError]) -> Iterator[Answer]:
        for result in results:
            answer = survivor(result, plan.skip_failed)
            if answer is None:
                continue
            size = num_bytes(answer.payload)
            tally.computed(answer.flops)
            # The cohort may get the inputs with what is sent before the fits; who has no answer needs none.
            apart = survey.counted == "answers" and size and answer.client_id not in cohort
            tally.sent(inputs.nbytes if survey.counted == "all" or apart else 0)
            tally.received(size if survey.counted != "none" else 0)
            yield answer

    answers = executor.map("answer", Turns(asked, make), inputs)
    return server.hear(state, inputs, counted(answers))


def sent(server: Server, state: Any, client_id: int, tally: Tally, bytes_of: ByteCounter) -> Any:
    """Give what the server sends a client, and count it."""
    payload = broadcast(server, state, client_id)
    tally.sent(bytes_of(payload))
    return payload
