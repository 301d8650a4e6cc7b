"""Forks the processes of one scenario after another from one process that has imported everything and started nothing.

Reads a scenario in JSON from each line of stdin, runs it, and prints what its processes told. Every scenario has a
deadline; whatever is alive then is killed, and told to be hung.
"""

import contextlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.allreduce.fault_member import Member, be_a_stranger, serve_rendezvous, speak_to
from experiments.allreduce.fault_plan import Scenario

DEADLINE_S = 40.0

Line = Mapping[str, Any]


class Child:
    """A process of the scenario, and what it has told so far."""

    def __init__(self, work: Callable[[Callable[..., None], Callable[[], None]], None]) -> None:
        """`work` gets what it tells with, and what waits until `start` is called here."""
        reading, writing = os.pipe()
        gate_out, gate_in = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            os.close(gate_in)
            tell = speak_to(writing)
            try:
                work(tell, lambda: None if os.read(gate_out, 1) else os._exit(3))
            except BaseException:  # noqa: BLE001 - told to the one who forked it
                tell(crashed=traceback.format_exc())
            os._exit(0)
        os.close(writing)
        os.close(gate_out)
        self.fd = reading
        self._gate = gate_in
        self._rest = b""
        self.lines: list[Line] = []
        self.ended = False
        self.stopped = False

    def start(self) -> None:
        """Let it go on."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._gate, b"\0")

    def read(self) -> None:
        """Take what it told."""
        data = os.read(self.fd, 65_536)
        if not data:
            self.ended = True
            os.waitpid(self.pid, 0)
        *whole, self._rest = (self._rest + data).split(b"\n")
        self.lines += [json.loads(line) for line in whole]

    def told(self, key: str) -> list[Any]:
        return [line[key] for line in self.lines if key in line]

    def is_stopped(self) -> bool:
        """Whether it stands still, by a signal."""
        if not self.ended and not self.stopped:
            self.stopped = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)[0] == self.pid
        return self.stopped

    def close(self) -> None:
        """End it, whatever it does."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
        os.close(self._gate)


class Run:
    """One scenario under way."""

    def __init__(self, plan: Scenario, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._selector = selectors.DefaultSelector()
        self._deadline_s = time.monotonic() + DEADLINE_S
        self._rendezvous = self._fork(lambda tell, _: serve_rendezvous(plan, tell))
        self._members: dict[str, Child] = {}
        self._others: list[Child] = []

    def carry_out(self) -> dict[str, Any]:
        """Run it; what each member told, how it ended, and how long it took."""
        plan = self._plan
        try:
            self._until(lambda: bool(self._rendezvous.told("address")))
            for name in (*plan.names, *([plan.newcomer] if plan.newcomer else [])):
                self._members[name] = self._member(name)
            there = [self._members[name] for name in plan.names]
            self._until(lambda: all(child.told("joined") or child.told("end") for child in there))
            if plan.what == "stranger":
                self._others.append(self._stranger([port for child in there for port in child.told("ports")[0]]))
            began_s = time.monotonic()
            for child in self._members.values():
                child.start()
            hung = not self._until(self._over)
            took_s = time.monotonic() - began_s
            ends = {name: self._end(child) for name, child in self._members.items()}
            return {
                "seconds": took_s,
                "hung": hung,
                "ends": ends,
                "told": {name: child.lines for name, child in self._members.items()},
                "crashed": [text for child in self._members.values() for text in child.told("crashed")],
            }
        finally:
            for child in (*self._members.values(), *self._others, self._rendezvous):
                child.close()

    def _over(self) -> bool:
        """Whether all who can end have; who was frozen comes back when the others have ended."""
        frozen = "frozen" in self._plan.what and not self._plan.what.startswith("rendezvous")
        victim = self._members[f"m{self._plan.victim}"]
        others = [child for child in self._members.values() if child is not victim]
        if not all(child.ended for child in others):
            return False
        if victim.ended:
            return True
        if not (frozen and victim.is_stopped()):
            return False
        if "back" in self._plan.what:
            os.kill(victim.pid, signal.SIGCONT)
            victim.stopped = False
            return self._until(lambda: victim.ended)
        return True

    def _until(self, over: Callable[[], bool]) -> bool:
        """Listen until `over`; False when the deadline passed first."""
        while not over():
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            for key, _ in self._selector.select(min(left_s, 0.05)):
                key.data.read()
                if key.data.ended:
                    self._selector.unregister(key.fileobj)
        return True

    def _fork(self, work: Callable[[Callable[..., None], Callable[[], None]], None]) -> Child:
        child = Child(work)
        self._selector.register(child.fd, selectors.EVENT_READ, child)
        return child

    def _member(self, name: str) -> Child:
        address = self._rendezvous.told("address")[0]
        return self._fork(lambda tell, wait: Member(self._plan, name, address, self._folder, tell).run(wait))

    def _stranger(self, ports: list[int]) -> Child:
        address = self._rendezvous.told("address")[0]
        return self._fork(lambda tell, _: be_a_stranger(self._plan, address, ports, tell))

    def _end(self, child: Child) -> str:
        if child.told("end"):
            return str(child.told("end")[0])
        if child.told("crashed"):
            return "crashed"
        if child.ended:
            return "killed"
        return "frozen" if child.is_stopped() else "hung"


def main() -> None:
    """Scenarios in, results out, until stdin ends."""
    folder = Path(sys.argv[1])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        plan = Scenario(**json.loads(line))
        print(json.dumps(Run(plan, folder).carry_out()), flush=True)


if __name__ == "__main__":
    main()
