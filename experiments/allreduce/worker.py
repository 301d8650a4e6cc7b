"""A worker process: reads requests as lines of JSON, does them, answers each with one line.

python -m experiments.allreduce.worker NAME
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import psutil
import torch
from torch import Tensor

from experiments.allreduce.member import Member
from experiments.allreduce.streams import Streams
from ring_allreduce import Group

IDLE_POLL_S = 0.05
Request = dict[str, Any]


class Worker:
    """One member, with everything it is compared to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.streams: Streams | None = None
        self.group: Group | None = None
        self._all_reduce: Callable[[Tensor], None]

    def listen(
        self, transport: str, host: str, links: dict[str, Any], keys: Request | None = None, shared: bool = True
    ) -> Request:
        """A new endpoint, known here as `transport`."""
        self.members[transport] = Member(self.name, host, links, keys, shared=shared)
        return {"address": self.members[transport].address}

    def connect(self, transport: str, peers: dict[str, Any]) -> Request:
        self.members[transport].connect(peers)
        return {}

    def rounds(self, transport: str, rings: list[Request], count: int, in_turn: bool = False, warm: int = 0) -> Request:
        mine = [ring for ring in rings if self.name in ring["members"]]
        return self.members[transport].rounds(mine, count, in_turn, warm)

    def digests(self, transport: str) -> Request:
        return {"digests": self.members[transport].digests()}

    def stream(self, transport: str, to: str, n_bytes: int, piece_bytes: int) -> Request:
        return self.members[transport].stream(to, n_bytes, piece_bytes)

    def serve(self, transport: str, clients: dict[str, Any], chunks: list[Any]) -> Request:
        return self.members[transport].serve(clients, chunks)

    def push(self, transport: str, server: str, span: Any, chunks: list[Any]) -> Request:
        return self.members[transport].push(server, span, chunks)

    def open_streams(self, host: str) -> Request:
        self.streams = Streams(host)
        return {"port": self.streams.port}

    def connect_streams(self, host: str, port: int) -> Request:
        assert self.streams is not None
        self.streams.connect(host, port)
        return {}

    def transfer(self, n_bytes: int) -> Request:
        assert self.streams is not None
        began_s, ended_s = self.streams.transfer(n_bytes)
        return {"began_s": began_s, "ended_s": ended_s}

    def join_gloo(self, rank: int, size: int, port: int) -> Request:
        from experiments.allreduce import gloo  # most workers do without, and it takes long to import

        gloo.join(rank, size, port)
        self._all_reduce = gloo.all_reduce
        return {}

    def gloo(self, elements: int, count: int, warm: int) -> Request:
        vector = torch.full((elements,), 1e-3)
        return self._timed(lambda: self._all_reduce(vector), count, warm)

    def join_group(self, rendezvous: str, size: int) -> Request:
        self.group = Group.join(rendezvous, name=self.name, size=size)
        return {}

    def average(self, elements: int, count: int, warm: int) -> Request:
        group = self.group
        assert group is not None
        vector = torch.full((elements,), 1e-3)
        return self._timed(lambda: group.average([vector]), count, warm)

    def cpu(self, seconds: float) -> Request:
        """The CPU time of this process, all threads, while it only waits."""
        own = psutil.Process()
        before = own.cpu_times()
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            self.idle() if self.members else time.sleep(IDLE_POLL_S)
        after = own.cpu_times()
        return {"cpu_s": after.user + after.system - before.user - before.system}

    def idle(self) -> None:
        for member in self.members.values():
            member.idle(IDLE_POLL_S / len(self.members))

    def _timed(self, work: Callable[[], object], count: int, warm: int) -> Request:
        for _ in range(warm):
            work()
        cpu_s, began_s = time.process_time(), time.monotonic()
        for _ in range(count):
            work()
        return {"began_s": began_s, "ended_s": time.monotonic(), "cpu_s": time.process_time() - cpu_s}


def main(name: str) -> None:
    # Whatever prints goes to stderr: stdout holds the answers alone.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    worker = Worker(name)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line)
            for member in list(worker.members.values()):
                member.endpoint.wake()
        requests.put("")

    threading.Thread(target=read, daemon=True).start()
    answers.write("{}\n")
    answers.flush()
    while True:
        while worker.members and requests.empty():
            worker.idle()
        line = requests.get()  # without an endpoint there is nothing else to do; a parent that is gone closes the pipe
        if not line:
            return
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:  # noqa: BLE001 - told to whoever asked, who ends the measurement
            traceback.print_exc()
            answer = {"error": repr(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
