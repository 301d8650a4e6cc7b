"""Hosts and a caller for measurements: hosts as processes of this machine, and an endpoint that delays and loses.

In: a grid, and delays. Out: samples per second of requests that are always `in_flight` under way. A host that waits for
a processor which others use computes nothing meanwhile; the kernel tells for how long it did, and so what the rate
would have been without (`Alone`).
"""

import contextlib
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from experiments.harness.report import ROOT
from ravnest.dht import new_identity
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.calls import Answered, Call, Failed
from ravnest.experts.client import ExpertsClient
from ravnest.experts.config import ExpertsConfig, load_experts
from ravnest.experts.grid import Expert, member_name
from ravnest.experts.messages import codec
from ravnest.experts.open_host import shared_token
from ravnest.experts.table_thread import TableThread
from ring_allreduce.transport import Delivery, Lane, Message, ZmqEndpoint

START_S = 180.0
ANSWER_S = 120.0
WARM_S = 5.0


class Alone:
    """How much faster a thread would have been on a processor of its own, since this was made."""

    def __init__(self, thread: int | str) -> None:
        """`thread`: the number of a process, whose first thread is meant, or "thread-self"."""
        self._path = Path("/proc") / str(thread) / "schedstat"
        self._ran, self._waited = self._read()
        self._began_s = time.monotonic()

    def factor(self) -> float:
        """What to multiply its work per second by: by 1.5 when it has waited for a processor half as long as it ran."""
        ran, waited = self._read()
        return 1 + (waited - self._waited) / max(1, ran - self._ran)

    def busy(self) -> float:
        """The part of the time in which it had something to do: it ran, or waited for a processor."""
        ran, waited = self._read()
        return (ran - self._ran + waited - self._waited) / 1e9 / max(1e-9, time.monotonic() - self._began_s)

    def _read(self) -> tuple[int, int]:
        ran, waited, _ = map(int, self._path.read_text().split())
        return ran, waited


class FeedForward(nn.Module):
    """A residual feed-forward block, as published: a hidden layer of four times the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.layers(x)
        return result


def feed_forward(width: int) -> nn.Module:
    """The factory of the experiments' experts."""
    return FeedForward(width)


@dataclass(frozen=True)
class Hosted:
    """Hosts, by the numbers of their processes, a caller, and the first node of their table."""

    config: ExpertsConfig
    table: TableThread
    client: ExpertsClient
    endpoint: "DelayedEndpoint"
    processes: Sequence[int]


@dataclass(frozen=True)
class Passed:
    """alone: samples per second, as if the host had not waited for a processor. failed: the share of requests. busy:
    the part of the time in which the host had something to do."""

    rate: float
    alone: float
    failed: float
    busy: float


class DelayedEndpoint(ZmqEndpoint):
    """Sends each message later, by a time that is exponentially distributed. Belongs to one thread, as any endpoint."""

    def __init__(self, name: str, token: bytes, mean_s: float) -> None:
        super().__init__(name, codec=codec(), token=token)
        self.mean_s = mean_s
        self._draw = random.Random(0)
        self._held: list[tuple[float, int, str, Lane, Message, Sequence[Tensor]]] = []
        self._number = 0

    def send(self, peer: str, lane: Lane, message: Message, tensors: Sequence[Tensor] = ()) -> None:
        if not self.mean_s:
            return super().send(peer, lane, message, tensors)
        self._number += 1
        due_s = time.monotonic() + self._draw.expovariate(1 / self.mean_s)
        heappush(self._held, (due_s, self._number, peer, lane, message, tensors))
        return None

    def poll(self, timeout_s: float) -> list[Delivery]:
        while self._held and self._held[0][0] <= time.monotonic():
            _, _, peer, lane, message, tensors = heappop(self._held)
            super().send(peer, lane, message, tensors)
        if self._held:
            timeout_s = max(0.0, min(timeout_s, self._held[0][0] - time.monotonic()))
        return super().poll(timeout_s)


def gradient_of(output: Tensor) -> Tensor:
    """That of half the mean square of what comes out, which has a minimum: weights stay finite however long."""
    return output / output.numel()


@contextlib.contextmanager
def hosted(config: Mapping[str, Any], hosts: Sequence[Sequence[str]], within_s: float = START_S) -> Iterator[Hosted]:
    """A host for each of `hosts` (the command's options), a process with one thread, and a caller in this process. All
    experts have to be hosted within `within_s`, else it raises ExpertsUnavailable."""
    lines: list[str] = [f"{key}: {value}" for key, value in config.items()]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "experts.yaml"
        path.write_text("\n".join(lines) + "\n")
        made = load_experts(path)
        table = TableThread(["127.0.0.1:0"], [], identity := new_identity())
        stack.callback(table.close)
        processes = []
        for number, options in enumerate(hosts):
            words = ["experts", "serve", str(path), "--peer", table.addresses[0], "--name", f"host{number}"]
            command = [sys.executable, "-m", "ravnest", *words, *options, "--threads", "1"]
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
            processes.append(process.pid)
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
        token = shared_token(None, "127.0.0.1", made.name)
        endpoint = DelayedEndpoint(member_name("caller", identity.public_key), token, 0.0)
        client = ExpertsClient(made, table, endpoint, token)
        stack.callback(client.close)
        client.wait_for_experts(len(made.places), within_s)
        yield Hosted(made, table, client, endpoint, processes)


def throughput(there: Hosted, path: Sequence[Expert], samples: Tensor, *, in_flight: int, seconds: float) -> Passed:
    """Samples per second that pass forward and backward through the experts of `path`, of one host. A batch whose
    request fails begins anew. Whole passes count, but for the first `WARM_S` (`rate_of_passes`)."""
    client, (process,) = there.client, there.processes
    hosts = dict(_host_of(client, one) for one in path)
    ended: queue.SimpleQueue[tuple[int, Call, Answered | Failed]] = queue.SimpleQueue()
    passes: list[list[tuple[Call, Answered]]] = [[] for _ in range(in_flight)]
    passed_s: list[list[float]] = [[] for _ in range(in_flight)]

    under_way: dict[int, Future[Answered | Failed]] = {}

    def begin(number: int, call: Call) -> None:
        (future,) = client.call([call])
        under_way[number] = future
        future.add_done_callback(lambda done: _ended(done, number, call))

    def _ended(done: "Future[Answered | Failed]", number: int, call: Call) -> None:
        ended.put((number, call, done.result()))

    first = Call(path[0], hosts[path[0]], (samples,))
    for number in range(in_flight):
        begin(number, first)
    begun_s = time.monotonic()
    counted_s, failed, requests, alone = begun_s + WARM_S, 0, 0, Alone(process)
    counts = False
    while time.monotonic() < counted_s + seconds:
        number, call, result = ended.get(timeout=ANSWER_S)
        if not counts and time.monotonic() >= counted_s:
            counts, alone = True, Alone(process)
        requests += counts
        if isinstance(result, Failed):
            failed += counts
            passes[number] = []
            begin(number, first)
            continue
        way = passes[number]
        if call.updates is None:
            way.append((call, result))
            if len(way) < len(path):
                begin(number, Call(path[len(way)], hosts[path[len(way)]], (result.tensor,)))
                continue
            gradient = gradient_of(result.tensor)
        else:
            gradient = result.tensor
        if not way:
            if counts:
                passed_s[number].append(time.monotonic())
            begin(number, first)
            continue
        forward, answer = way.pop()
        begin(number, Call(forward.expert, forward.host, (forward.tensors[0], gradient), True, answer.updates))
    rate, factor, busy = len(samples) * rate_of_passes(passed_s), alone.factor(), alone.busy()
    while not all(future.done() for future in under_way.values()):
        time.sleep(0.05)  # each has a deadline; what is still asked would slow the next measurement
    return Passed(rate, rate * factor, failed / max(1, requests), busy)


def rate_of_passes(passed_s: Sequence[Sequence[float]]) -> float:
    """Passes per second, from when the passes of each batch in flight have ended: as many as are in flight, by the mean
    time of a whole pass. Where all began together they go on in step, so that any other stretch of time has more of
    their forwards, which are cheap, or of their backwards."""
    passes = sum(max(0, len(one) - 1) for one in passed_s)
    return len(passed_s) * passes / sum(one[-1] - one[0] for one in passed_s if one) if passes else 0.0


def _host_of(client: ExpertsClient, expert: Expert) -> tuple[Expert, str]:
    scores = [[float(one == own) for one in range(side)] for own, side in zip(expert, client.config.grid, strict=True)]
    (found,) = client.find(BeamSearch([scores], width=1, best=1))
    return found[0]
