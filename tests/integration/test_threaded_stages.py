"""Whole runs of stages as they are in their processes, with sockets and a computing thread each, in one process."""

import threading
import time
from dataclasses import dataclass, field

import pytest
import torch

from ravnest.driver import instructions as ins
from ravnest.driver.in_process import LocalResult, LocalRun
from ravnest.driver.preparation import needed
from ravnest.errors import NodeLost
from ravnest.job.config import Job
from ravnest.job.initial_weights import make_weights
from ravnest.stage import messages as m
from ravnest.stage.assembling import assemble, batch_source
from ravnest.stage.executor import ThreadExecutor
from ravnest.stage.runtime import StageRuntime
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Lane, PeerAddress, ZmqEndpoint
from tests.support.local import JOB_FILE, local_run, tiny_job

pytestmark = pytest.mark.timeout(60)

DEADLINE_S = 20.0
CLIPPED = {"name": "adamw", "lr": 1e-2, "clip_norm": 0.5}


class Late:
    """A clock that the test may put forward."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.by_s


@dataclass
class StageThread:
    """One stage: what StageProcess is to it, in a thread of this process."""

    setup: StageSetup
    endpoint: ZmqEndpoint
    now: Late = field(default_factory=Late)
    error: BaseException | None = None

    def start(self, peers: dict[str, PeerAddress], state: dict[str, torch.Tensor]) -> None:
        self.ready = threading.Event()
        self.executor = ThreadExecutor(self.endpoint.wake, prepare=lambda: torch.set_num_threads(1))
        self.thread = threading.Thread(target=self._run, args=(peers, state), daemon=True)
        self.thread.start()

    def _run(self, peers: dict[str, PeerAddress], state: dict[str, torch.Tensor]) -> None:
        try:
            self.endpoint.connect(peers)
            source = batch_source(self.setup)
            self.stage: StageRuntime = assemble(
                self.setup, self.endpoint, self.executor, source, state, {}, 0, now=self.now
            )
            self.ready.set()
            while not self.stage.stopped:
                self.stage.turn(0.05)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self.executor.close(DEADLINE_S)
            self.endpoint.close()
            self.ready.set()

    def assert_left(self) -> None:
        """Nothing of it runs, and nothing that it made waits."""
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()
        assert not self.executor.is_alive
        assert self.executor.finished() == []
        assert self.stage.unsent == 0


class Driver:
    """Stages in threads, with the control of a local run of the same job, whose own stages stand still."""

    def __init__(self, job: Job, parts: tuple[int, ...]) -> None:
        self.run: LocalRun = local_run(job, parts=parts)
        self.endpoint = ZmqEndpoint(m.DRIVER, codec=m.codec(), token=b"t" * 16)
        self.run.driver = self.endpoint
        setups = {name: stage.setup for name, stage in self.run.stages.items()}
        self.stages = {
            name: StageThread(setup, ZmqEndpoint(name, codec=m.codec(), token=b"t" * 16))
            for name, setup in setups.items()
        }
        addresses = {name: stage.endpoint.address for name, stage in self.stages.items()}
        self.endpoint.connect(addresses)
        weights = make_weights(job, JOB_FILE)
        for name, stage in self.stages.items():
            peers = {peer: address for peer, address in addresses.items() if peer != name}
            state = {tensor: weights[tensor] for tensor in needed(stage.setup)}
            stage.start({**peers, m.DRIVER: self.endpoint.address}, state)
        for stage in self.stages.values():
            assert stage.ready.wait(DEADLINE_S)
            assert stage.error is None
        for name, setup in setups.items():
            if setup.is_first:
                self.say(name, m.Go())

    def say(self, name: str, message: m.Message) -> None:
        self.endpoint.send(name, Lane.PIPELINE, message)

    def follow(self, until_updates: int | None = None) -> LocalResult:
        """To the end of the run, or until so many updates were reported in all."""
        began_s, updates = time.monotonic(), 0
        while self.run.control.phase is not ins.RunPhase.DONE:
            now_s = time.monotonic() - began_s
            assert now_s < DEADLINE_S, f"still {self.run.control.phase.name}"
            assert [stage.error for stage in self.stages.values() if stage.error] == []
            for delivery in self.endpoint.poll(0.02):
                self.run.note(delivery.sender, delivery.message, delivery.tensors)
                self.run.follow(self.run.control.handle(delivery.sender, delivery.message))
                updates += isinstance(delivery.message, m.Updated)
            if until_updates is not None and updates >= until_updates:
                break
            self.run.follow(self.run.control.tick(now_s))
        return self.run.result

    def close(self) -> None:
        for name in self.stages:
            self.say(name, m.Stop())
        self.endpoint.poll(0.0)
        for stage in self.stages.values():
            stage.thread.join(DEADLINE_S)
        self.endpoint.close()


def threaded(job: Job, parts: tuple[int, ...]) -> LocalResult:
    driver = Driver(job, parts)
    try:
        result = driver.follow()
    finally:
        driver.close()
    for stage in driver.stages.values():
        assert stage.error is None
        stage.assert_left()
    return result


SYNCHRONOUS = {
    "two stages": ({}, (2,)),
    "tied, clipped": ({"model": {"factory": "tied:gpt"}, "optimizer": CLIPPED}, (3,)),
}


@pytest.mark.parametrize("case", SYNCHRONOUS)
def test_without_staleness_the_updates_are_those_of_a_run_in_one_thread(case: str) -> None:
    changes, parts = SYNCHRONOUS[case]
    job = tiny_job(max_staleness=0, average_every=96, stop={"samples": 120}, **changes)
    ours, theirs = threaded(job, parts), local_run(job, parts=parts).run()
    together = min(len(ours.losses["c0"]), len(theirs.losses["c0"]))  # which one drains later is a matter of timing
    assert together >= 120 // job.micro_batch
    assert ours.losses["c0"][:together] == theirs.losses["c0"][:together]
    assert {each for staleness in ours.staleness.values() for each in staleness} == {0}


ASYNCHRONOUS = {
    "tied exactly": {"max_staleness": 1},
    "tied by averaging, clipped, split": {
        "max_staleness": 2,
        "tied": "averaged",
        "optimizer": CLIPPED,
        "split_backward": "always",
    },
}


@pytest.mark.parametrize("case", ASYNCHRONOUS)
def test_two_clusters_train_evaluate_and_average_within_the_bound(case: str) -> None:
    job = tiny_job(
        model={"factory": "tied:everywhere"},
        average_every=24,
        max_lag=2,
        evaluate_every=60,
        stop={"samples": 240},
        **ASYNCHRONOUS[case],
    )
    result = threaded(job, (3, 2))
    assert sum(len(losses) for losses in result.losses.values()) * job.micro_batch >= 240
    assert max(each for staleness in result.staleness.values() for each in staleness) <= job.max_staleness
    assert len(result.evaluations) >= 2
    assert len(result.checkpoints) >= 1
    assert all(tensor.isfinite().all() for tensor in result.checkpoints[-1].values())


def test_a_stage_that_loses_its_driver_leaves_no_thread_that_computes() -> None:
    driver = Driver(tiny_job(stop={"samples": 10**6}, average_every=10**6, wait_for_driver_minutes=0), (1,))
    (stage,) = driver.stages.values()
    try:
        driver.follow(until_updates=3)
        until_s = time.monotonic() + DEADLINE_S
        while stage.thread.is_alive() and time.monotonic() < until_s:
            stage.now.by_s += 1.0  # a leap would be taken for a time in which the process stood still
            stage.thread.join(0.3)
        assert isinstance(stage.error, NodeLost)
        stage.assert_left()
    finally:
        driver.close()
