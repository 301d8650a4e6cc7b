"""Stages as a run has them, each in a process made by fork; the caller's process is their driver.

Decides nothing: hands out weights, lets the first stage go, and passes on what the stages report.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType

from torch import Tensor

from ravnest.driver.preparation import StageState, hand_out
from ravnest.stage import messages as m
from ravnest.stage.process import StageProcess
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Lane, Message, Outbox, PeerAddress, ZmqEndpoint

BUSY = ("forward", "backward", "weights", "update")
_ALIVE_EVERY_S = 0.5
_ADDRESS_BYTES = 1 << 16
_ADDRESS_LIMIT_S = 60.0  # to bind a socket and read a small data set, on a busy machine
_END_LIMIT_S = 30.0


@dataclass(frozen=True)
class StageRow:
    """One stage, per micro-batch, in milliseconds."""

    stage: str
    wall_ms: float
    compute_ms: float
    handoff_ms: float
    waiting_ms: float
    staleness: int
    """The largest of a gradient."""

    @property
    def busy(self) -> float:
        """The share of the time in which it computed."""
        return self.compute_ms / self.wall_ms


class ForkedStages:
    """The stages of one cluster, from fork to end."""

    def __init__(self, setups: Mapping[str, StageSetup], weights: Mapping[str, Tensor]) -> None:
        """`setups` by transport name, of one token; `weights` of the whole model."""
        self._setups = setups
        self._weights = weights
        token = next(iter(setups.values())).transport.token
        self._children = {name: fork_stage(setup) for name, setup in setups.items()}
        self._driver = ZmqEndpoint(m.DRIVER, codec=m.codec(), token=token)
        self._outbox = Outbox(self._driver)

    def __enter__(self) -> "ForkedStages":
        peers = {name: PeerAddress(**json.loads(child.read())) for name, child in self._children.items()}
        peers[m.DRIVER] = self._driver.address
        self._driver.connect(peers)
        for child in self._children.values():
            child.write(json.dumps({name: asdict(address) for name, address in peers.items()}).encode())
        states = {name: StageState(self._weights, {}, 0) for name in self._setups}
        hand_out(self._outbox, self._driver, self._setups.values(), states)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._setups:
            self._driver.send(name, Lane.PIPELINE, m.Stop())
        self._driver.close()
        for child in self._children.values():
            child.end()

    def reports(self, limit_s: float) -> Generator[tuple[str, Message]]:
        """What the stages say, and who, from the start. Raises TimeoutError when the caller wants more after that."""
        until_s = time.monotonic() + limit_s
        waiting, alive_at_s = set(self._setups), 0.0
        while True:
            now_s = time.monotonic()
            if now_s > until_s:
                raise TimeoutError(f"the stages did not get so far in {limit_s:.0f} s")
            self._outbox.flush()
            if now_s >= alive_at_s:
                alive_at_s = now_s + _ALIVE_EVERY_S
                for name in self._setups:
                    self._driver.send(name, Lane.PIPELINE, m.Alive())
            for delivery in self._driver.poll(0.1):
                if isinstance(delivery.message, m.StageStarted):
                    waiting.discard(delivery.sender)
                    if not waiting:
                        first = next(name for name, setup in self._setups.items() if setup.is_first)
                        self._driver.send(first, Lane.PIPELINE, m.Go())
                yield delivery.sender, delivery.message


def measure(
    setups: Mapping[str, StageSetup], weights: Mapping[str, Tensor], *, warm_up: int, updates: int, limit_s: float
) -> list[StageRow]:
    """Where each stage's time went in `updates` updates after the first `warm_up`, by its own ledger."""
    begun: dict[str, tuple[float, dict[str, float]]] = {}
    stale = dict.fromkeys(setups, 0)
    rows: dict[str, StageRow] = {}
    micro_batches = updates * next(iter(setups.values())).job.update_every
    with ForkedStages(setups, weights) as stages, contextlib.closing(stages.reports(limit_s)) as reports:
        for name, message in reports:
            if not isinstance(message, m.Updated):
                continue
            stale[name] = max(stale[name], *message.staleness, 0)
            if message.update == warm_up:
                begun[name] = time.monotonic(), dict(message.spent)
            elif message.update == warm_up + updates:
                rows[name] = _row(name, *begun[name], message.spent, micro_batches, stale[name])
                if len(rows) == len(setups):
                    break
    return [rows[name] for name in sorted(rows)]


def _row(
    name: str, from_s: float, before: Mapping[str, float], spent: Mapping[str, float], micro_batches: int, stale: int
) -> StageRow:
    ms = {state: 1e3 * (seconds - before.get(state, 0.0)) / micro_batches for state, seconds in spent.items()}
    computing = sum(ms.get(kind, 0.0) for kind in BUSY)
    handoff = ms.get("handoff", 0.0)
    waiting = sum(ms.values()) - computing - handoff
    return StageRow(name, 1e3 * (time.monotonic() - from_s) / micro_batches, computing, handoff, waiting, stale)


class Child:
    """A stage's process, and the pipes to it."""

    def __init__(self, pid: int, reads: int, writes: int) -> None:
        self.pid, self._reads, self._writes = pid, reads, writes
        self._left = False

    def read(self) -> bytes:
        return _read(self._reads)

    def write(self, data: bytes) -> None:
        os.write(self._writes, data)

    def has_left(self) -> bool:
        self._left = self._left or os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        return self._left

    def end(self) -> None:
        """It was told to stop; one that does not is killed."""
        os.close(self._reads)
        os.close(self._writes)
        until_s = time.monotonic() + _END_LIMIT_S
        while not self.has_left():
            if time.monotonic() > until_s:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return
            time.sleep(0.01)


def _read(pipe: int) -> bytes:
    """One message. Raises TimeoutError when none comes, EOFError when the other end is gone."""
    if not select.select([pipe], [], [], _ADDRESS_LIMIT_S)[0]:
        raise TimeoutError(f"no addresses came in {_ADDRESS_LIMIT_S:.0f} s")
    data = os.read(pipe, _ADDRESS_BYTES)
    if not data:
        raise EOFError("a stage's process ended before it said where it listens")
    return data


def fork_stage(setup: StageSetup) -> Child:
    """A process that says where it listens, is told its peers, and is a stage until its driver says stop."""
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    pid = os.fork()
    if pid:
        os.close(to_parent)
        os.close(from_parent)
        return Child(pid, from_child, to_child)
    try:
        process = StageProcess(setup, "127.0.0.1")
        os.write(to_parent, json.dumps(asdict(process.address)).encode())
        process.run({name: PeerAddress(**each) for name, each in json.loads(_read(from_parent)).items()})
    finally:
        os._exit(0)
