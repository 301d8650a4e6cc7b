"""One process of a scenario: a member that averages and tells what it got, the victim among them, or a stranger.

Runs in a child that was forked from fault_nursery.py. What it has to tell goes down a pipe, a line of JSON each.
"""

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.allreduce.fault_endpoint import FaultyEndpoint, strike
from experiments.allreduce.fault_plan import CHUNK_ELEMENTS, Scenario, contribution, participants, weight
from ring_allreduce import Group, InvalidInput, Patience, RavnestError, Rendezvous
from ring_allreduce.group import control_messages as c
from ring_allreduce.group import group_ring
from ring_allreduce.group import member as module
from ring_allreduce.group.control_line import ControlLine
from ring_allreduce.ring import RING_KINDS, Chunk
from ring_allreduce.transport import Codec, Lane, Message, PeerAddress, ZmqEndpoint

PATIENCE = Patience(alive_every_s=0.1, silence_floor_s=1.5, stall_floor_s=1.2)
JOIN_S = 15.0
MOST_CALLS = 400
PACE_S = 0.01
"""Between the calls of those who wait for a newcomer."""

Tell = Callable[..., None]


def serve_rendezvous(plan: Scenario, tell: Tell) -> None:
    """The rendezvous, which may end itself at a step."""
    finished = plan.at_round * plan.members - 1
    if plan.what.startswith("rendezvous"):
        take, heard = Rendezvous._take, [0]

        def counted(self: Rendezvous, connection: Any, message: Message) -> None:
            if isinstance(message, c.FinishedMessage):
                heard[0] += 1
                if heard[0] > finished - plan.at_chunk % plan.members:
                    strike(signal.SIGKILL if "killed" in plan.what else signal.SIGSTOP)
            take(self, connection, message)

        Rendezvous._take = counted  # type: ignore[method-assign]
    with Rendezvous(size=plan.members, patience=PATIENCE) as rendezvous:
        tell(address=rendezvous.address)
        rendezvous.wait(60.0)


class Member:
    """One member's part in a scenario."""

    def __init__(self, plan: Scenario, name: str, rendezvous: str, folder: Path, tell: Tell) -> None:
        self._plan, self._name, self._rendezvous, self._folder, self._tell = plan, name, rendezvous, folder, tell
        self._is_victim = name == f"m{plan.victim}"
        self._endpoint: FaultyEndpoint | None = None
        self._said_struck = False
        torch.set_num_threads(1)
        group_ring.chunk_elements_for = lambda rate, element_bytes: CHUNK_ELEMENTS  # type: ignore[attr-defined]
        group_ring.direct_is_faster = lambda n_bytes, members: plan.way == "direct"  # type: ignore[attr-defined]
        if self._is_victim and plan.what != "none":
            module.ZmqEndpoint = self._faulty  # type: ignore[misc, assignment]
        if plan.what == "two killed" and name == f"m{(plan.victim + 1) % plan.members}":
            self._die_when_an_epoch_begins()

    def run(self, wait_for_start: Callable[[], None]) -> None:
        """All of it; how it ended is told."""
        try:
            if self._name == self._plan.newcomer:
                wait_for_start()
                with self._join_when_a_place_is_free() as group:
                    self._average(group, life=0, calls=2, newcomer=True)
            else:
                with self._join() as group:
                    self._tell(joined=self._name, ports=_ports(group))
                    wait_for_start()
                    self._live(group)
            self._tell(end="completed")
        except RavnestError as error:
            self._tell(end=type(error).__name__, text=str(error))

    def _live(self, group: Group) -> None:
        plan = self._plan
        if self._is_victim and plan.what.startswith("leaves"):
            self._average(group, life=0, calls=plan.at_round)
            group.close()
            if plan.what == "leaves and comes back":
                with self._join_when_a_place_is_free() as again:
                    self._average(again, life=1, calls=2, newcomer=True)
            return
        if plan.awaited is None:
            self._average(group, life=0, calls=plan.rounds)
            return
        seen = False
        for call in range(1, MOST_CALLS + 1):
            total = self._call(group, 0, call, weight(self._name))
            seen = seen or (call > plan.at_round and plan.awaited in participants(plan, total))
            if seen and call >= plan.rounds:
                return
            time.sleep(PACE_S)

    def _average(self, group: Group, life: int, calls: int, *, newcomer: bool = False) -> None:
        for call in range(1, calls + 1):
            if self._is_victim and self._plan.what == "does not call" and call == self._plan.at_round:
                time.sleep(2 * self._plan.timeout_s)
            self._call(group, life, call, 0.0 if newcomer and call == 1 else weight(self._name))

    def _call(self, group: Group, life: int, call: int, n: float) -> float:
        plan = self._plan
        tensor = torch.from_numpy(contribution(plan, self._name, life, call))
        if self._is_victim and call == plan.at_round:
            if plan.what == "wrong size":
                tensor = torch.cat([tensor, tensor[:1]])
            elif plan.what == "other dtype":
                tensor = tensor.double()
            elif plan.what == "NaN":
                tensor[plan.at_chunk % len(tensor)] = torch.nan
        before = tensor.clone()
        if n:
            self._tell(begun=[life, call])
        try:
            # Every other call brings its numbers in another form; who joins later would not know which.
            parts = tensor.tensor_split(2) if call % 2 == 0 and plan.awaited is None else [tensor]
            total = group.average(parts, weight=n, timeout_s=plan.timeout_s)
        except RavnestError:
            if not torch.equal(tensor.nan_to_num(), before.nan_to_num()):
                self._tell(spoilt="a call that failed changed its tensors")
            raise
        path = self._folder / f"{self._name}.{life}.{call}.bin"
        tensor.numpy().astype(np.float32).tofile(path)
        endpoint = group._member._endpoint
        dropped = endpoint.stats.dropped.total() if endpoint else 0
        self._tell(done=[life, call, group.rounds, total], members=group.members, epoch=group.epoch, dropped=dropped)
        return total

    def _join(self) -> Group:
        return Group.join(
            self._rendezvous,
            name=self._name,
            size=self._plan.members,
            timeout_s=JOIN_S,
            wire=self._plan.wire,  # type: ignore[arg-type]
            on_loss=self._plan.on_loss,
        )

    def _join_when_a_place_is_free(self) -> Group:
        end_s = time.monotonic() + JOIN_S
        while True:
            try:
                return self._join()
            except InvalidInput:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.02)

    def _faulty(self, name: str, **options: Any) -> ZmqEndpoint:
        lines: list[ControlLine] = []
        tell = ControlLine.tell

        def noticed(line: ControlLine, message: Message) -> None:
            lines[:] = [line]
            if isinstance(message, c.FinishedMessage) and message.round == self._plan.at_round:
                if self._plan.what == "killed as its ring finishes":
                    strike(signal.SIGKILL)
                if self._endpoint is not None:
                    self._endpoint.come()
            tell(line, message)

        ControlLine.tell = noticed  # type: ignore[method-assign]

        def hang_up() -> None:
            for line in lines:
                line._connection.shutdown(socket.SHUT_RDWR)

        self._endpoint = FaultyEndpoint(name, plan=self._plan, hang_up=hang_up, struck=self._struck, **options)
        return self._endpoint

    def _struck(self) -> None:
        if not self._said_struck:
            self._said_struck = True
            self._tell(struck=self._plan.what)

    def _die_when_an_epoch_begins(self) -> None:
        tell = ControlLine.tell

        def noticed(line: ControlLine, message: Message) -> None:
            if isinstance(message, c.HeldMessage) and message.epoch > 1:
                strike(signal.SIGKILL)
            tell(line, message)

        ControlLine.tell = noticed  # type: ignore[method-assign]


def _ports(group: Group) -> list[int]:
    endpoint = group._member._endpoint
    assert endpoint is not None
    return [endpoint.address.pipeline_port, endpoint.address.bulk_port]


def be_a_stranger(plan: Scenario, rendezvous: str, ports: list[int], tell: Tell) -> None:
    """Noise at every port: bytes of no meaning, half frames, joins that do not fit, chunks without the token."""
    chance = random.Random(plan.seed)
    host, _, port = rendezvous.rpartition(":")
    where = c.MemberAddress("127.0.0.1", 1, 1)
    noise = [
        chance.randbytes(chance.randint(1, 3000)),
        b"\0\0\0\xff",
        c.framed(c.JoinMessage(name="m0", size=plan.members + 1, address=where)),
        c.framed(c.FinishedMessage(epoch=1, round=1)),
        c.framed(c.PutOutMessage(epoch=9, reason="", refused=True)),
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    kept = []
    for target in [int(port), *ports]:
        for bytes_ in noise:
            one = socket.create_connection((host, target), timeout=5)
            one.sendall(bytes_)
            kept.append(one)
    intruder = ZmqEndpoint("m0", codec=Codec(RING_KINDS), token=b"\1" * 16)
    for number, bulk in enumerate(ports[1::2]):
        intruder.connect({f"p{number}": PeerAddress("127.0.0.1", bulk, bulk)})
        chunk = Chunk(ring="group", round=1, phase="reduce", block=0, start=0, stop=10, weight=1.0)
        intruder.send(f"p{number}", Lane.BULK, chunk, [torch.ones(10)])
    tell(made_noise=len(kept))
    end_s = time.monotonic() + 20.0
    while time.monotonic() < end_s:
        intruder.poll(0.2)


def speak_to(fd: int) -> Tell:
    """Tells through the pipe `fd`, a line of JSON each."""

    def tell(**what: object) -> None:
        os.write(fd, json.dumps(what).encode() + b"\n")

    return tell
