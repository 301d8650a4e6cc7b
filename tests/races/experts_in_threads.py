"""A client of experts, whose calls belong to a thread of its own, beside threads that ask, in orders a seed chooses."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from ravnest.experts import client
from ravnest.experts.calls import Answered, Call, Failed
from ring_allreduce.errors import UnknownPeer
from tests.races.interleaving import Interleaving


def calls_that_are_asked_while_their_client_closes(seed: int) -> None:
    """Two threads ask while a third one closes the client. Each call has a result, and no thread waits for ever."""
    schedule = Interleaving(seed, [client])
    bodies: list[Callable[[], None]] = []

    class Endpoint:
        """It reaches nobody."""

        name = "caller"

        def send(self, peer: str, *_: object) -> None:
            raise UnknownPeer(peer)

        def poll(self, wait_s: float) -> list[Any]:
            schedule.give_way()
            return []

        def wake(self) -> None:
            pass

        def close(self) -> None:
            pass

    def run(_: object) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done

    table = SimpleNamespace(run=run, public_key=b"", close=lambda: None)
    config = SimpleNamespace(places=SimpleNamespace(callers_key=b""), out_shape=(1,), input_shape=(1,))
    grid = SimpleNamespace(proof_of=lambda key: b"")
    directory = SimpleNamespace(hosts={}, forget=lambda expert: None, close=lambda: None)
    with (
        mock.patch.object(client, "Directory", return_value=directory),
        mock.patch.object(client, "replace", return_value=grid),
        mock.patch.object(client, "listens_at"),
        mock.patch.object(client, "caller_entry"),
        mock.patch.object(client, "member_withdrawal"),
    ):
        with mock.patch.object(threading, "Thread", schedule.thread_class(bodies)):
            asked = client.ExpertsClient(config, table, Endpoint(), b"")  # type: ignore[arg-type] # have what is used
        futures: list[Future[Answered | Failed]] = []

        def ask() -> None:
            for _ in range(3):
                futures.extend(asked.call([Call((0,), "host", (torch.zeros(1, 1),))]))

        schedule.run(*bodies, ask, ask, asked.close)
    assert len(futures) == 6
    assert {one.result(0) for one in futures} <= {Failed("lost"), Failed("closed")}
