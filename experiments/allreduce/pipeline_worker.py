"""A process of the pipeline experiment: one stage as a run has it, or the driver, which switches averaging on and off.

    python -m experiments.allreduce.pipeline_worker NAME

Reads requests as lines of JSON and answers each with one line, like worker.py.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from experiments.allreduce import pipeline_site
from experiments.harness import paced_model
from ravnest.driver import instructions as ins
from ravnest.driver.accounts import RunShape
from ravnest.driver.control import RunControl
from ravnest.driver.preparation import StageState, hand_out
from ravnest.job.initial_weights import make_weights
from ravnest.pipeline import stage_name
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ravnest.stage.process import StageProcess
from ring_allreduce.rounds import RoundOwner, SamplesReported
from ring_allreduce.transport import Delivery, Lane, Outbox, PeerAddress, ZmqEndpoint

ALIVE_EVERY_S = 0.5
START_S = 60.0
_ROOM_PIECES = 1 << 20  # this driver writes no checkpoints: it drops what comes
Answer = dict[str, Any]


class SwitchedOwner(RoundOwner):
    """A RoundOwner that opens no round while it is switched off."""

    on = True

    def handle(self, event: Any, now_s: float) -> Any:
        return [] if isinstance(event, SamplesReported) and not self.on else super().handle(event, now_s)


class Driver:
    """Drives the stages until the measurement is over, and writes down when updates and rounds happened."""

    def __init__(self, site: pipeline_site.Site, host: str) -> None:
        self._site = site
        self._endpoint = ZmqEndpoint(m.DRIVER, codec=m.codec(), token=pipeline_site.TOKEN, host=host)
        self.address = self._endpoint.address
        self._outbox = Outbox(self._endpoint)
        rings = {
            str(number): [stage_name(*member) for member in ring.members] for number, ring in enumerate(site.plan.rings)
        }
        self._owner = SwitchedOwner(rings, site.job.average_every, max_lag=site.job.max_lag)
        shape = RunShape(
            clusters={cluster.name: len(cluster.stages) for cluster in site.plan.clusters},
            evaluators=(site.plan.clusters[0].name,),
            samples_per_update=site.job.micro_batch * site.job.update_every,
            stop_samples=None,
            stop_s=None,
            evaluate_every=site.job.evaluate_every,
            held_out_batches=0,
        )
        self._control = RunControl(shape, self._owner)
        self._lasts = {name: setup.cluster for name, setup in site.setups.items() if setup.is_last}
        self._starting = set(site.setups)
        self._next_alive_s = 0.0
        self._opened: dict[int, float] = {}
        self._updates: dict[str, list[float]] = {cluster: [] for cluster in self._lasts.values()}
        self._rounds: list[tuple[float, float]] = []
        self._waits: dict[str, float] = {}

    def run(self, peers: Mapping[str, PeerAddress], periods: Sequence[tuple[bool, float, float]]) -> list[Answer]:
        """Train for the periods (averaging on?, seconds that do not count, seconds that do); what happened in each."""
        self._endpoint.connect(peers)
        weights = make_weights(self._site.job, pipeline_site.JOB_FILE)
        hand_out(
            self._outbox,
            self._endpoint,
            self._site.setups.values(),
            dict.fromkeys(self._site.setups, StageState(weights, {}, 0)),
        )
        self._until(time.monotonic() + START_S, started=True)
        for name, setup in self._site.setups.items():
            if setup.is_first:
                self._endpoint.send(name, Lane.PIPELINE, m.Go())
        return [self._period(*period) for period in periods]

    def _period(self, averaging: bool, settle_s: float, seconds: float) -> Answer:
        self._owner.on = averaging
        self._until(time.monotonic() + settle_s)
        began_s = time.monotonic()
        for times in self._updates.values():
            times.clear()
        self._rounds.clear()
        self._until(began_s + seconds)
        samples = paced_model.MICRO_BATCH * pipeline_site.UPDATE_EVERY
        # Between the first and the last update: a period does not begin with one.
        if min(map(len, self._updates.values())) < 2:
            raise RuntimeError(f"{seconds:g} s were too short for two updates, or a stage has ended: see its output")
        rates = [samples * (len(times) - 1) / (times[-1] - times[0]) for times in self._updates.values()]
        spans = [(start, end) for start, end in self._rounds] + [
            (start, time.monotonic()) for start in self._opened.values()
        ]
        return {
            "averaging": averaging,
            "samples_per_s": sum(rates),
            "rounds": len(self._rounds),
            "round_s": [end - start for start, end in self._rounds],
            "in_flight": _covered_s(spans, began_s, began_s + seconds) / seconds,
            "seconds": seconds,
        }

    def _until(self, end_s: float, *, started: bool = False) -> None:
        while time.monotonic() < end_s:
            for delivery in self._endpoint.poll(0.05):
                self._take(delivery)
            self._outbox.flush()
            now_s = time.monotonic()
            if now_s >= self._next_alive_s:
                self._next_alive_s = now_s + ALIVE_EVERY_S
                for stage in self._site.setups:
                    self._endpoint.send(stage, Lane.PIPELINE, m.Alive())
            if started and not self._starting:
                return
        if started:
            raise TimeoutError(f"not started within {START_S:g} s: {sorted(self._starting)}")

    def _take(self, delivery: Delivery) -> None:
        message, now_s = delivery.message, time.monotonic()
        if isinstance(message, m.StageStarted):
            self._starting.discard(delivery.sender)
        if isinstance(message, m.Updated) and delivery.sender in self._lasts:
            self._updates[self._lasts[delivery.sender]].append(now_s)
        if isinstance(message, m.Alive | sm.StatePiece):
            return
        for instruction in self._control.handle(delivery.sender, message):
            match instruction:
                case ins.SendToStage():
                    if isinstance(instruction.message, m.RoundOpenedMessage):
                        self._opened.setdefault(instruction.message.round, now_s)
                    self._endpoint.send(instruction.peer, Lane.PIPELINE, instruction.message)
                case ins.BeginCheckpoint():
                    for stage in self._site.setups:
                        room = sm.StateWanted(round=instruction.round, pieces=_ROOM_PIECES)
                        self._endpoint.send(stage, Lane.PIPELINE, room)
                case ins.RecordRoundCommitted():
                    self._rounds.append((self._opened.pop(instruction.round), now_s))


def _covered_s(spans: Sequence[tuple[float, float]], began_s: float, ended_s: float) -> float:
    """How much of [began_s, ended_s] lies in at least one span."""
    covered, reached = 0.0, began_s
    for start, end in sorted(spans):
        start, end = max(start, reached), min(end, ended_s)
        if end > start:
            covered += end - start
            reached = end
    return covered


def main(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_num_threads(1)

    def answer(content: Answer) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    answer({})
    try:
        line = sys.stdin.readline()
        if not line:
            return  # whoever started it is gone
        asked = json.loads(line)
        site = pipeline_site.build(asked["load"], emulated=asked["emulated"])
        here = Driver(site, asked["host"]) if name == m.DRIVER else StageProcess(site.setups[name], asked["host"])
        answer({"address": [here.address.host, here.address.pipeline_port, here.address.bulk_port]})
        asked = json.loads(sys.stdin.readline())
        peers = {peer: PeerAddress(*where) for peer, where in asked["peers"].items()}
        if isinstance(here, Driver):
            answer({"periods": here.run(peers, asked["periods"])})
        else:
            here.run(peers)
    except Exception as error:  # noqa: BLE001 - told to whoever asked, who ends the measurement
        traceback.print_exc()
        answer({"error": repr(error)})


if __name__ == "__main__":
    main(sys.argv[1])
