"""A stage's process: it binds an endpoint, waits for its state, and runs until the driver says stop.

In: a setup, the peers' addresses, and from the driver the weights that the stage does not make itself. Out: a
StageRuntime whose parts are joined, and which is run to its end. There are two threads: the caller's owns the sockets,
the other computes.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor

from ravnest.checkpoints.own_copies import copies_here
from ravnest.errors import NodeLost
from ravnest.free_memory import give_back_freed
from ravnest.job.experts_table import close_experts
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import shadow_messages as shm
from ravnest.stage.assembling import (
    assemble,
    batch_source,
    joining,
    living,
    place_taken,
    shadowing,
    stand_by,
    standing_by,
    started,
    take_place,
)
from ravnest.stage.executor import Executor, ThreadExecutor
from ravnest.stage.joining import ArrivingState, JoiningStage
from ravnest.stage.messages import ALIVE_EVERY_S, STATE_DEADLINE_S, STOOD_STILL_S
from ravnest.stage.runtime import StageRuntime
from ravnest.stage.setup import StageSetup
from ravnest.stage.shadowing import ShadowStage
from ring_allreduce.rounds import AwakeTime
from ring_allreduce.transport import Endpoint, Lane, PeerAddress, TransportLimits, ZmqEndpoint

_POLL_S = 0.25
_CLOSE_S = 5.0
_QUEUE_SPARE_MESSAGES = 256


class StageProcess:
    """One stage, from binding to leaving."""

    def __init__(self, setup: StageSetup, host: str) -> None:
        self._setup = setup
        self._host = host
        self._noticed = False
        self.trains = False
        """Whether the stage has begun to train."""
        torch.set_num_threads(setup.machine.threads)
        self._source = batch_source(setup)
        begins = not setup.transport.joins and setup.successor is None
        self._own = copies_here(setup.stored) if begins else {}
        self._endpoint = _bound(setup, host)

    @property
    def address(self) -> PeerAddress:
        """The address at which the stage listens."""
        return self._endpoint.address

    @property
    def samples(self) -> tuple[int, int] | None:
        """The samples of the training and the held-out set; None where this stage reads neither."""
        return None if self._source is None else self._source.samples

    @property
    def holds(self) -> tuple[str, ...]:
        """The initial weights that this machine's own files hold, which need not be sent."""
        return tuple(self._own)

    def run(self, peers: Mapping[str, PeerAddress]) -> None:
        """Train until the driver says stop. Raises whatever else ends it. Then computing has ended, and the endpoint is
        closed."""
        with ExitStack() as leaving:
            leaving.callback(lambda: self._endpoint.close())
            if self._source is not None:
                leaving.callback(self._source.close)
            if self._setup.job.experts is not None:
                leaving.callback(close_experts)
            self._endpoint.connect(peers)
            threads = self._setup.machine.threads
            executor = ThreadExecutor(self._endpoint.wake, prepare=lambda: torch.set_num_threads(threads))
            leaving.callback(executor.close, _CLOSE_S)
            stage = self._begin(executor)
            self._work(stage)
            if isinstance(stage, ShadowStage):
                if stage.takes_place is None:
                    return
                stage = self._take_place(stage, stage.takes_place, peers[m.DRIVER], executor)
                self._work(stage)
            while (stopped := standing_by(stage)) is not None:
                self._rest(executor)
                executor = ThreadExecutor(self._endpoint.wake, prepare=lambda: torch.set_num_threads(threads))
                leaving.callback(executor.close, _CLOSE_S)
                stand = partial(stand_by, self._setup, stopped, executor, self._source)
                stage = living(self._endpoint, stand, 0, threads)
                self._work(stage)

    def _begin(self, executor: Executor) -> StageRuntime | JoiningStage | ShadowStage:
        if self._setup.successor is not None:
            return shadowing(self._setup, self._endpoint, self._source)
        if self._setup.transport.joins:
            return joining(self._setup, self._endpoint, executor, self._source)
        made, threads = make_initial(self._setup, self._endpoint), self._setup.machine.threads
        begin, weights, optimizer = receive_state(self._endpoint)
        weights |= with_own_memory(made) | {name: tensor.clone() for name, tensor in self._own.items()}
        self._own = {}
        parts = self._setup, self._endpoint, executor, self._source, weights, optimizer, begin.version
        runtime = living(self._endpoint, partial(assemble, *parts, copy=False), begin.tensors, threads)
        del weights, optimizer, parts
        give_back_freed()
        self._endpoint.send(m.DRIVER, Lane.PIPELINE, started())
        return runtime

    def _take_place(
        self, shadow: ShadowStage, order: shm.TakePlace, driver: PeerAddress, executor: Executor
    ) -> JoiningStage:
        """Listen as the stage whose place this warm spare takes, tell the driver where, and join with the anchor."""
        assert self._setup.successor is not None
        before, self._setup = self._endpoint, self._setup.successor
        self._endpoint = _bound(self._setup, self._host)
        self._endpoint.connect({m.DRIVER: driver})
        at = self._endpoint.address
        before.send(m.DRIVER, Lane.PIPELINE, place_taken(at))
        before.close()
        return take_place(self._setup, shadow, order, self._endpoint, executor, self._source)

    def _rest(self, executor: ThreadExecutor) -> None:
        """Wait for the end of the computation that is under way. Meanwhile the driver hears that the stage lives."""
        while executor.is_alive:
            executor.close(ALIVE_EVERY_S)
            self._endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive())

    def give_notice(self) -> None:
        """The process is to end soon: let the driver know. A handler of signals may call it."""
        self._noticed = True
        self._endpoint.wake()

    def _work(self, stage: StageRuntime | JoiningStage | ShadowStage) -> None:
        told = False
        self.trains = not isinstance(stage, ShadowStage)
        while not stage.stopped:
            stage.turn()
            if self._noticed and not told:
                told = True
                self._endpoint.send(m.DRIVER, Lane.PIPELINE, em.NoticeGiven())


def _bound(setup: StageSetup, host: str) -> ZmqEndpoint:
    """The endpoint of a stage, which listens from now on."""
    window = (setup.job.staleness_bound + 1) * setup.job.update_every
    return ZmqEndpoint(
        setup.name,
        codec=m.codec(),
        token=setup.transport.token,
        host=host,
        limits=TransportLimits(
            max_message_bytes=setup.transport.max_message_bytes,
            queue_messages=2 * window + _QUEUE_SPARE_MESSAGES,
            in_flight_bytes=setup.transport.in_flight_bytes,
        ),
        links=setup.imitated.links,
        node=setup.imitated.node,
        keys=setup.transport.keys,
    )


def make_initial(setup: StageSetup, endpoint: Endpoint, now: Callable[[], float] = time.monotonic) -> dict[str, Tensor]:
    """The weights that the stage makes itself, by name. Meanwhile the driver hears that it is alive."""
    next_alive_s, steps = now(), 0

    def step_done() -> None:
        nonlocal next_alive_s, steps
        steps += 1
        if now() >= next_alive_s:
            next_alive_s = now() + ALIVE_EVERY_S
            endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive(finished=steps))

    return {name: tensor for each in setup.initial for name, tensor in each.make(setup.job.seed, step_done).items()}


def with_own_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each in memory that no other has a part of: some are copied for it."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage()
        alone = memory.nbytes() == tensor.nbytes and memory.data_ptr() not in seen
        seen.add(memory.data_ptr())
        found[name] = tensor if alone else tensor.clone()
    return found


def receive_state(
    endpoint: Endpoint, deadline_s: float = STATE_DEADLINE_S, now: Callable[[], float] = time.monotonic
) -> tuple[m.Begin, dict[str, Tensor], dict[tuple[str, str], Tensor]]:
    """Wait for the weights and the optimizer state.

    Returns the message by which the stage begins, weights and buffers by name, and the optimizer state by (parameter
    name, the optimizer's key). Raises NodeLost where nothing more comes for `deadline_s`.
    """
    state = ArrivingState()
    awake = AwakeTime(STOOD_STILL_S, ALIVE_EVERY_S)
    last_s = next_alive_s = awake.at(now())
    while (begin := state.whole) is None:
        for delivery in endpoint.poll(_POLL_S):
            if delivery.sender != m.DRIVER:
                continue  # nobody else has anything to say before the driver lets the run begin
            last_s = awake.at(now())
            if state.take(delivery):
                next_alive_s = last_s  # the driver sends no more before it knows what has come
        now_s = awake.at(now())
        if now_s >= next_alive_s:
            next_alive_s = now_s + ALIVE_EVERY_S
            endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive(finished=state.pieces))
        if now_s - last_s > deadline_s:
            raise NodeLost(f"the driver sent no more state for {deadline_s:.0f} s")
    return begin, state.weights, state.optimizer
