"""A table, three hosts, two trainers, and one host that is killed: python examples/experts/start.py [STEPS]

It starts the same commands that you would start on five machines, shows what they say, and kills the third host once
the first trainer has made a third of its steps. The exit code is 0 when both trainers have ended well.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

from ravnest.experts import load_experts
from ring_allreduce import RavnestError, Rendezvous

HERE = Path(__file__).parent
START_S, STEP_S = 180.0, 3.0
"""Deadlines: of whatever starts, and of each step of the trainers."""


class Started:
    """A process whose lines are shown and kept."""

    def __init__(self, name: str, *command: str) -> None:
        self.name, self.lines = name, []
        self.process = subprocess.Popen([sys.executable, "-u", *command], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            print(f"[{self.name}] {line.rstrip()}", flush=True)

    def wait_for(self, word: str, count: int, deadline_s: float) -> str:
        """The line that is the `count`-th to contain the word."""
        ends_s = time.monotonic() + deadline_s
        while time.monotonic() < ends_s:
            found = [line for line in self.lines if word in line]
            if len(found) >= count:
                return found[count - 1]
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} has ended with exit code {self.process.returncode}")
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} said no {word!r} within {deadline_s:g} s")


def rows_of_hosts() -> list[tuple[str, list[str]]]:
    """The hosts, and the rows of the grid that each is to have: a quarter, a quarter and the rest."""
    rows, *others = load_experts(HERE / "experts.yaml").grid
    patterns = [".".join([str(row), *"*" * len(others)]) for row in range(rows)]
    first, second = (rows + 2) // 4, (rows + 1) // 2
    return [("desk", patterns[:first]), ("attic", patterns[first:second]), ("shed", patterns[second:])]


def main(steps: int) -> int:
    started: list[Started] = []
    try:
        table = Started("table", "-m", "ravnest", "dht", "start", "--listen", "127.0.0.1:0")
        started.append(table)
        peer = table.wait_for(" at ", 1, START_S).split(" at ")[1].split(":")
        address = f"{peer[0]}:{peer[1]}"
        hosts = []
        for name, wanted in rows_of_hosts():
            patterns = [word for one in wanted for word in ("--experts", one)]
            options = ["--peer", address, "--name", name, "--threads", "1", *patterns]
            hosts.append(Started(name, "-m", "ravnest", "experts", "serve", str(HERE / "experts.yaml"), *options))
        started += hosts
        for host in hosts:  # one that cannot make its experts says why, and ends
            host.wait_for(" listens at ", 1, START_S)
        with Rendezvous(size=2) as rendezvous:
            words = (address, rendezvous.address, "2", str(steps))
            trainers = [Started(name, str(HERE / "train.py"), name, *words) for name in ("anne", "ben")]
            started += trainers
            trainers[0].wait_for("step", 1, START_S)
            trainers[0].wait_for("step", max(1, steps // 60), START_S + steps * STEP_S)
            hosts[2].process.kill()
            print("[start] the host shed was killed", flush=True)
            for trainer in trainers:
                trainer.process.wait(START_S + steps * STEP_S)
        return max(trainer.process.returncode for trainer in trainers)
    finally:
        for one in started:
            one.process.terminate()
        for one in started:
            try:
                one.process.wait(30.0)
            except subprocess.TimeoutExpired:
                one.process.kill()


if __name__ == "__main__":
    if len(sys.argv) > 2 or not all(word.isdecimal() for word in sys.argv[1:]):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 600))
    except (RavnestError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))
