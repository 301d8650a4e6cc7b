"""How a driver takes over a session that another one has begun, and that its stages wait to go on with.

In: where the stages listen, and what the driver before has written down. Out: where the session stands, once the stages
have answered, and the first instructions. Nothing is started anew: the stages keep weights, optimizers and places.
"""

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ravnest.driver import instructions as ins
from ravnest.driver.control import RunControl
from ravnest.driver.standing import Standing
from ravnest.errors import RunFailed
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage.messages import ALIVE_EVERY_S
from ring_allreduce.rounds import SILENCE_FLOOR_S
from ring_allreduce.transport import Delivery, Endpoint, Lane

ANSWER_S = SILENCE_FLOOR_S
"""A stage that has not said within this time where it is counts as gone."""

_POLL_S = 0.1
_REACH_S = 2.0
_TRIED_TOGETHER = 64


class NothingToTakeOver(RunFailed):
    """Too little of a session is left to go on with."""


@dataclass(frozen=True)
class Answers:
    """What stages have answered to a driver that takes over, and what they have said since then, in order."""

    positions: Mapping[str, em.StagePosition]
    early: list[Delivery]


def any_reached(places: Iterable[tuple[str, int]]) -> bool:
    """Whether something listens at any of these places (host, port). They are tried together, for two seconds each."""
    pool = ThreadPoolExecutor(_TRIED_TOGETHER)
    try:
        return any(pool.map(_reached, places))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _reached(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, timeout=_REACH_S).close()
    except OSError:
        return False
    return True


def ask(
    endpoint: Endpoint,
    stages: list[str],
    term: int,
    is_gone: Callable[[str], bool] = lambda stage: False,
    now: Callable[[], float] = time.monotonic,
) -> Answers:
    """Turn these stages to this driver, whose endpoint knows them, and wait for their answers.

    `is_gone`: whether a stage's process is known to have ended, so that it is not waited for.
    """
    endpoint.epoch = term
    positions: dict[str, em.StagePosition] = {}
    early: list[Delivery] = []
    until_s, next_s = now() + ANSWER_S, now()
    order = take_over_order(endpoint, term)
    for stage in stages:
        endpoint.send(stage, Lane.PIPELINE, order)
    while now() < until_s and any(not is_gone(stage) for stage in stages if stage not in positions):
        for delivery in endpoint.poll(_POLL_S):
            sort_answer(delivery, term, positions, early)
        if now() >= next_s:
            next_s = now() + ALIVE_EVERY_S
            for stage in positions:
                endpoint.send(stage, Lane.PIPELINE, m.Alive())
    return Answers(positions, early)


def take_over_order(endpoint: Endpoint, term: int) -> em.TakeOver:
    """What turns stages to the driver with this endpoint."""
    at = endpoint.address
    return em.TakeOver(term=term, host=at.host, pipeline_port=at.pipeline_port, bulk_port=at.bulk_port)


def sort_answer(delivery: Delivery, term: int, positions: dict[str, em.StagePosition], early: list[Delivery]) -> None:
    """Put what a stage says among the positions, or to what comes after its own. What came before is of no use."""
    message = delivery.message
    if isinstance(message, em.StagePosition) and message.term == term:
        positions[delivery.sender] = message
    elif delivery.sender in positions:
        early.append(delivery)


def first_instructions(control: RunControl, standing: Standing) -> list[ins.Instruction]:
    """What a driver does first whose control stands where another has come to: bring the stages together.

    Clusters that are not whole any more are lost. Raises NodeLost where none is left. A run that was coming to its end
    goes on with that. One whose whole clusters were all leaving is saved, and begins again.
    """
    out = control.bring_together()
    for name in (each for each in standing.whole if each not in standing.draining):
        last = control.clusters.stages_of(name)[-1]
        news = range(standing.knows[name] + 1, control.rounds.opened + 1)
        out += [ins.SendToStage(last, m.RoundOpenedMessage(round=number)) for number in news]
    for stage in standing.missing.values():
        out += control.lost(stage, "it was not there when another driver took the run over")
    if standing.stopping:
        return out + control.stop(evaluate=True)
    if standing.draining >= set(standing.whole):
        return out + control.begin_again("all clusters were leaving when another driver took the run over")
    for name in (each for each in standing.whole if each in standing.draining):
        out += control.leave(name, "was leaving when another driver took the run over")
    return out
