"""A whole stage: the thread that owns its sockets beside the one that computes, in orders that a seed chooses.

Its neighbour and its driver are bare endpoints of this process. What is drawn is who goes on before each line of the
modules that both threads run; torch's own work is one step.
"""

import queue
import threading
from collections import deque
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from ravnest.stage import (
    compute_tasks,
    executor,
    progress_handing,
    reports,
    rounds,
    runtime,
    sends,
    state_sending,
    tied,
)
from ravnest.stage import donor_messages as dm
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ravnest.stage.executor import ThreadExecutor
from ring_allreduce.transport import Delivery
from tests.races.interleaving import Interleaving
from tests.unit.ravnest.stage.test_runtime import Bench

STAGE = [runtime, executor, compute_tasks, sends, state_sending, reports, rounds, progress_handing]
MICRO_BATCHES = 6


def a_queue(schedule: Interleaving) -> type:
    """A class in the place of queue.SimpleQueue, whose readers let others go on while it is empty."""

    class Queue:
        def __init__(self) -> None:
            self._items: deque[Any] = deque()

        def put(self, item: Any) -> None:
            self._items.append(item)

        def get(self) -> Any:
            while not self._items:
                schedule.give_way()
            return self._items.popleft()

        def empty(self) -> bool:
            return not self._items

    return Queue


@cache
def _captured() -> None:
    """Let the model be captured once, with the locks that torch makes for it."""
    Bench("c0.s2")


def a_stage_that_computes_while_its_sockets_are_served(seed: int) -> None:
    """The last stage of three is sent micro-batches, contributes to a round, merges it, and sends its state for a
    checkpoint, while it computes on."""
    _captured()
    schedule = Interleaving(seed, STAGE)
    bodies: list[Any] = []
    with (
        schedule.locks(),
        mock.patch.object(queue, "SimpleQueue", a_queue(schedule)),
        mock.patch.object(threading, "Thread", schedule.thread_class(bodies)),
    ):
        computing = ThreadExecutor(lambda: None, prepare=lambda: None)
        bench = Bench("c0.s2", executor=computing)
    gradients: list[int] = []
    told: list[Any] = []

    def own() -> None:
        bench.say(m.DRIVER, m.RoundOpenedMessage(round=1))
        for micro_batch in range(MICRO_BATCHES):
            bench.say("c0.s1", *bench.activation(micro_batch))
        while len(gradients) < MICRO_BATCHES or not any(isinstance(one, sm.StateSent) for one in told):
            bench.turn()
            gradients.extend(each.message.micro_batch for each in bench.heard("c0.s1"))
            for message in [each.message for each in bench.heard(m.DRIVER)]:
                told.append(message)
                if isinstance(message, m.RingFinishedMessage):
                    bench.say(m.DRIVER, m.RoundCommittedMessage(round=1, save=True))
                    bench.say(m.DRIVER, sm.StateWanted(round=1, pieces=100))
            schedule.give_way()
        bench.say(m.DRIVER, m.Stop())
        bench.turn()
        computing.close(0.0)

    schedule.run(*bodies, own)
    assert bench.stage.stopped
    assert gradients == list(range(MICRO_BATCHES))
    assert [one.update for one in told if isinstance(one, m.Updated)] == [0, 1]
    pieces = [one for one in told if isinstance(one, sm.StatePiece)]
    assert [one.pieces for one in told if isinstance(one, sm.StateSent)] == [len(pieces)]
    assert [one.round for one in told if isinstance(one, m.RoundMerged)] == [1]


def tied_weights_that_arrive_while_they_are_adopted(seed: int) -> None:
    """The sockets' thread takes newer weights of a tied parameter while forwards adopt them, and updates count how
    stale they were. What a forward uses is of the version that is counted for it."""
    schedule = Interleaving(seed, [tied])
    used: list[float] = []
    weights = SimpleNamespace(version=0, replace=lambda arrived: used.append(float(arrived["w"][0])))
    setup = SimpleNamespace(borrowed=("w",), passed_on=("w",), from_behind=(), to_owner=(), lent=())
    with schedule.locks():
        here = tied.TiedParameters(setup, weights, 1, 10)  # type: ignore[arg-type] # have what is used
    newest: list[float] = []
    stale: list[int] = []

    def arrive() -> None:
        for version in range(1, 5):
            here.arrived_weights(m.TiedWeights(version=version, names=("w",)), [torch.full((1,), float(version))])

    def compute() -> None:
        for micro_batch in range(4, 8):
            here.adopt(micro_batch)
            newest.append(used[-1] if used else 0.0)
            stale.extend(here.staleness(micro_batch, (0,)))

    def pass_on() -> None:
        for _ in range(4):
            passed.extend(float(parcel.tensors[0][0]) for parcel in here.parcels())
            assert here.held_bytes in (0, 4)

    passed: list[float] = []
    schedule.run(arrive, compute, pass_on)
    passed += [float(parcel.tensors[0][0]) for parcel in here.parcels()]
    assert passed == [1.0, 2.0, 3.0, 4.0]
    assert newest == sorted(newest)
    assert stale == [number - int(version) for number, version in enumerate(newest, 4)]


def progress_that_is_taken_while_it_is_handed_on(seed: int) -> None:
    """Three stages hand on what they have made, one after another, while rounds are contributed to: what each of them
    gave counts in one round, and in no other."""
    schedule = Interleaving(seed, [progress_handing])
    segment = SimpleNamespace(progress=SimpleNamespace(elements=2, wire="float32"))
    rings = SimpleNamespace(segments={0: segment}, takers=lambda ring: {"a", "b", "c"})
    with schedule.locks():
        handing = progress_handing.ProgressHanding(SimpleNamespace(rings=rings))  # type: ignore[arg-type]
    counted: list[float] = []

    def take(sender: str, message: Any, *tensors: torch.Tensor) -> None:
        handing.take(Delivery(sender, 0, message, tensors))

    def own() -> None:
        for number, giver in enumerate("abc", 1):
            take(m.DRIVER, dm.TakeProgress(sources=((0, giver),)))
            (asked,) = [message for _, message, _ in handing.pieces() if isinstance(message, dm.ProgressAsked)]
            piece = dm.ProgressPiece(ring=0, request=asked.request, updates=1, round=1, samples=4, offset=0, last=True)
            take(giver, piece, torch.full((2,), float(number)))
            take(m.DRIVER, dm.AddProgress(ring=0, giver=giver, counted=(), from_round=number))
            assert handing.held_bytes >= 0

    def compute() -> None:
        for round_ in range(1, 5):
            counted.extend(float(part.progress[0]) for part in handing.due(0, round_))

    schedule.run(own, compute)
    counted += [float(part.progress[0]) for part in handing.due(0, 9)]
    assert sorted(counted) == [1.0, 2.0, 3.0]
    assert not handing.held_bytes
