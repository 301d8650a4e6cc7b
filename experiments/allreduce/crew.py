"""Worker processes, one for each member, that answer one line of JSON with another over their stdin and stdout.

Knows no work: experiments/allreduce/worker.py does it. Every wait has a deadline; leaving the `with` block ends the
processes whatever state they are in.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from experiments.harness.report import ROOT
from ring_allreduce.transport import KeyPair

WORKER = "experiments.allreduce.worker"
START_S = 150.0
ANSWER_S = 180.0
Answer = dict[str, Any]


class WorkerFailed(RuntimeError):
    """A worker said what went wrong, died, or did not answer in time."""


class Crew:
    """The members of one measurement."""

    def __init__(
        self, names: Sequence[str], *, module: str = WORKER, inside: Callable[[str], Sequence[str]] = lambda name: ()
    ) -> None:
        """Starts `python -m MODULE NAME` for each; `inside` gives the words in front of it (a namespace, say)."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.names = tuple(names)
        self._workers: dict[str, subprocess.Popen[str]] = {}
        self._answers: dict[str, queue.SimpleQueue[str]] = {}
        for name in names:
            worker = subprocess.Popen(
                [*inside(name), sys.executable, "-m", module, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=ROOT,
            )
            self._workers[name] = worker
            self._answers[name] = queue.SimpleQueue()
            threading.Thread(target=self._read, args=(name,), daemon=True).start()
        self._gather(names, START_S)

    def ask(self, requests: Mapping[str, Mapping[str, object]], timeout_s: float = ANSWER_S) -> dict[str, Answer]:
        """Send each of these workers its request, all at once, and wait for all answers. Raises WorkerFailed."""
        for name, request in requests.items():
            self.tell(name, request)
        return self._gather(list(requests), timeout_s)

    def tell(self, name: str, request: Mapping[str, object]) -> None:
        """Send a request, and do not wait for what comes of it. Raises WorkerFailed."""
        stdin = self._workers[name].stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except OSError as error:
            raise WorkerFailed(f"{name} takes no request: {error}") from error

    def ask_all(self, timeout_s: float = ANSWER_S, **request: object) -> dict[str, Answer]:
        """The same request to all."""
        return self.ask(dict.fromkeys(self.names, request), timeout_s)

    def open(
        self,
        transport: str,
        *,
        hosts: Mapping[str, str] | None = None,
        links: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
        encrypted: bool = False,
        shared: bool = True,
    ) -> None:
        """Give every member an endpoint, known as `transport`, connected to all others'.

        `hosts`: each member's address (127.0.0.1). `links`, `shared`: see Member.
        """
        pairs = {name: KeyPair.make() for name in self.names} if encrypted else {}
        allowed = {name: pair.public for name, pair in pairs.items()}
        requests = {}
        for name in self.names:
            keys = {"public": pairs[name].public, "secret": pairs[name].secret, "allowed": allowed} if pairs else None
            host = hosts[name] if hosts else "127.0.0.1"
            shapes = links.get(name, {}) if links else {}
            options = {"host": host, "links": shapes, "keys": keys, "shared": shared}
            requests[name] = {"do": "listen", "transport": transport, **options}
        peers = {name: answer["address"] for name, answer in self.ask(requests).items()}
        self.ask_all(do="connect", transport=transport, peers=peers)

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes. Idempotent."""
        for worker in self._workers.values():
            worker.kill()
        for worker in self._workers.values():
            worker.wait(10.0)

    def _gather(self, names: Sequence[str], timeout_s: float) -> dict[str, Answer]:
        deadline_s = time.monotonic() + timeout_s
        answers = {}
        for name in names:
            try:
                line = self._answers[name].get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                raise WorkerFailed(f"{name} gave no answer within {timeout_s:g} s") from None
            if not line:
                raise WorkerFailed(f"{name} ended")
            answers[name] = json.loads(line)
            if "error" in answers[name]:
                raise WorkerFailed(f"{name}: {answers[name]['error']}")
        return answers

    def _read(self, name: str) -> None:
        stdout = self._workers[name].stdout
        assert stdout is not None
        for line in stdout:
            self._answers[name].put(line)
        self._answers[name].put("")


def elapsed_s(answers: Mapping[str, Answer]) -> float:
    """From the first start to the last end: all workers share this machine's monotonic clock."""
    ended_s, began_s = (([a[key] for a in answers.values()]) for key in ("ended_s", "began_s"))
    return float(max(ended_s) - min(began_s))
