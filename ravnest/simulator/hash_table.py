"""Nodes of the hash table under the virtual clock: the machine that really runs, on links that are only reckoned.

In: machines, what is asked of them, and the delay between each two. Out: their answers, and when they came. A message
arrives after the delay, or is lost by chance; it takes no time to send. Nobody reaches a node that only opens
connections outwards, except whom it has sent something itself.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, Protocol

from ravnest.dht.contacts import Address
from ravnest.dht.events import (
    AnswerGet,
    AnswerJoin,
    AnswerStore,
    Event,
    GetAsked,
    Instruction,
    JoinAsked,
    MessageArrived,
    Send,
    StoreAsked,
    TimePassed,
)
from ravnest.simulator.clock import VirtualClock

Answer = AnswerJoin | AnswerGet | AnswerStore


class Machine(Protocol):
    """What takes part: a HashTableNode, or a test's liar."""

    @property
    def wakes_s(self) -> float | None: ...

    def handle(self, event: Event, now_s: float) -> list[Instruction]: ...


class Drawn:
    """Numbers that look random and are the same for the same seed."""

    def __init__(self, seed: str) -> None:
        self._seed = seed.encode()
        self._count = 0

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes, at most 64."""
        self._count += 1
        return blake2b(self._seed + self._count.to_bytes(8, "big"), digest_size=count).digest()

    def unit(self) -> float:
        """The next number from 0 up to 1."""
        return int.from_bytes(self.bytes(6), "big") / 2**48


class ChecksumIdentity:
    """Signs with a checksum that everybody can compute, since real signatures would take most of a simulation's time.
    What is not signed at all is noticed as with real ones."""

    def __init__(self, seed: str) -> None:
        self._public_key = blake2b(seed.encode(), digest_size=32).digest()

    @property
    def public_key(self) -> bytes:
        return self._public_key

    def sign(self, data: bytes) -> bytes:
        return blake2b(self._public_key + data, digest_size=64).digest()

    def verify(self, public_key: bytes, data: bytes, signature: bytes) -> bool:
        return blake2b(public_key + data, digest_size=64).digest() == signature


class VirtualTable:
    """Machines by number, each with an address of its own, and the network between them."""

    def __init__(
        self,
        delay_s: Callable[[int, int], float],
        *,
        loss: float = 0.0,
        seed: str = "0",
        on_message: Callable[[Send], Send | None] = lambda sent: sent,
    ) -> None:
        """`delay_s`: from one machine to another. `loss`: the part of the messages that is lost. `on_message`: what
        becomes of each message that is sent; None: nothing."""
        self.now_s = 0.0
        self.answers: dict[int, tuple[float, Answer]] = {}
        self.messages = 0
        self._delay_s = delay_s
        self._loss = loss
        self._chance = Drawn(f"{seed}/loss")
        self._on_message = on_message
        self._clock = VirtualClock()
        self._until_s = 0.0
        self._later: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._machines: dict[int, Machine] = {}
        self._numbers: dict[Address, int] = {}
        self._addresses: list[Address] = []
        self._wakes: dict[int, float] = {}
        self._opened: dict[int, set[int]] = {}
        self._call = 0

    def add(self, machine: Machine, *, outwards_only: bool = False, address: Address | None = None) -> int:
        """Let a machine take part from now on. Returns its number."""
        number = len(self._addresses)
        self._machines[number] = machine
        self._addresses.append(address or address_of(number))
        self._numbers[self._addresses[number]] = number
        if outwards_only:
            self._opened[number] = set()
        return number

    def address(self, number: int) -> Address:
        """Where a machine is."""
        return self._addresses[number]

    def kill(self, number: int) -> None:
        """The machine takes part no longer; nobody is told."""
        del self._machines[number]
        self._wakes.pop(number, None)

    def alive(self) -> list[int]:
        return list(self._machines)

    def ask(self, number: int, event: Callable[[int], JoinAsked | GetAsked | StoreAsked]) -> int:
        """Give a machine the event that is made of the number of a new call, and return that number."""
        self._call += 1
        self._handle(number, event(self._call), self.now_s)
        return self._call

    def run_until(self, until_s: float) -> None:
        """Let everything happen up to this moment."""
        self._until_s = until_s
        while self._later and self._later[0][0] <= until_s:
            at_s, _, action, argument = heappop(self._later)
            self._clock.at(max(at_s, self.now_s), action, argument)
        self._clock.run()
        self.now_s = until_s

    def answer(self, call: int, within_s: float) -> Answer:
        """The answer of a call, which has to come within so many seconds from now. Raises LookupError if not."""
        end_s = self.now_s + within_s
        while call not in self.answers and self.now_s < end_s:
            self.run_until(min(end_s, self.now_s + 0.1))
        if call not in self.answers:
            raise LookupError(f"call {call} was not answered within {within_s} s")
        return self.answers.pop(call)[1]

    def _at(self, at_s: float, action: Callable[[Any], None], argument: Any) -> None:
        if at_s <= self._until_s:
            self._clock.at(at_s, action, argument)
        else:
            self._sequence += 1
            heappush(self._later, (at_s, self._sequence, action, argument))

    def _handle(self, number: int, event: Event, now_s: float) -> None:
        machine = self._machines[number]
        for instruction in machine.handle(event, now_s):
            if isinstance(instruction, Send):
                self._send(number, instruction, now_s)
            else:
                assert instruction.call is not None
                self.answers[instruction.call] = now_s, instruction
        wakes_s = machine.wakes_s
        if wakes_s is not None and wakes_s < self._wakes.get(number, float("inf")):
            self._wakes[number] = wakes_s
            self._at(max(wakes_s, now_s), self._woken, (number, wakes_s))

    def _woken(self, woken: tuple[int, float]) -> None:
        number, wakes_s = woken
        if self._wakes.get(number) == wakes_s:
            del self._wakes[number]
            self._handle(number, TimePassed(), self._clock.now_s)

    def _send(self, number: int, sent: Send, now_s: float) -> None:
        self.messages += 1
        target = self._numbers.get(sent.address)
        if number in self._opened and target is not None:
            self._opened[number].add(target)
        changed = self._on_message(sent)
        if target is None or changed is None or (self._loss and self._chance.unit() < self._loss):
            return
        if target in self._opened and number not in self._opened[target]:
            return
        arrived = target, MessageArrived(self._addresses[number], changed.message)
        self._at(now_s + self._delay_s(number, target), self._arrive, arrived)

    def _arrive(self, arrived: tuple[int, MessageArrived]) -> None:
        number, event = arrived
        if number in self._machines:
            self._handle(number, event, self._clock.now_s)


def address_of(number: int) -> Address:
    """A local address for each number."""
    return Address(bytes([10]) + number.to_bytes(3, "big"), 1000)
