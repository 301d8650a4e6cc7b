"""Experts for tests: small ones, a hash table without sockets, and a client whose experts are in the same process."""

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ravnest.dht import Entry, EntryStored, HashTable, KeyFound, KeyIdentity, Record, new_identity
from ravnest.experts import RemoteMixtureOfExperts
from ravnest.experts.batch_calls import Caller
from ravnest.experts.beam_search import BeamSearch
from ravnest.experts.calls import Answered, Call, Failed
from ravnest.experts.config import ExpertsConfig, build_expert, experts_from
from ravnest.experts.expert import HostedExpert
from ravnest.experts.grid import Expert
from ravnest.experts.table_thread import TableThread

WIDTH = 4


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


def block(width: int = WIDTH) -> nn.Module:
    return Block(width)


def numpy_block() -> nn.Module:
    """A block whose weights numpy draws."""
    made = Block(WIDTH)
    with torch.no_grad():
        made.linear.weight.copy_(torch.from_numpy(np.random.rand(WIDTH, WIDTH)))
    return made


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))


class Deaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.same.expand(len(x), WIDTH)


def deaf() -> nn.Module:
    return Deaf()


def narrow() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH - 1)


def small_grid(**keys: object) -> ExpertsConfig:
    """2 × 2 experts, whose module is `block`."""
    standard: dict[str, object] = {
        "name": "test",
        "grid": [2, 2],
        "expert": {"factory": "tests.support.experts:block"},
        "input_shape": [WIDTH],
        "optimizer": {"name": "sgd", "lr": 0.1},
        "batch": {"most_samples": 8, "most_wait_ms": 0},
    }
    return experts_from(**{**standard, **keys})


class TableContents:
    """What all nodes of a table have. `hidden`: keys that no look finds.

    At `now_s` of 0 whatever is said expires at once for those who remember it, though looks find it until `forget`.
    """

    def __init__(self) -> None:
        self.records: dict[bytes, dict[tuple[bytes, bytes], Record]] = {}
        self.now_s = 0.0
        self.hidden: set[bytes] = set()

    def forget(self, author: bytes) -> None:
        """All that this author said has expired."""
        for held in self.records.values():
            for slot in [slot for slot in held if slot[0] == author]:
                del held[slot]


class TableOfTest(TableThread):
    """A node that does at once what it is asked, in the caller's thread."""

    def __init__(self, contents: TableContents, identity: KeyIdentity | None = None) -> None:
        self.contents, self.identity = contents, identity or new_identity()
        self.public_key = self.identity.public_key
        self.addresses = ["127.0.0.1:1"]
        self.reads: list[bytes] = []
        self.thorough_reads: list[bytes] = []

    def run(self, work: Callable[[HashTable], Coroutine[Any, Any, Any]]) -> Future[Any]:
        future: Future[Any] = Future()
        running = work(self)  # type: ignore[arg-type]
        try:
            running.send(None)
        except StopIteration as end:
            future.set_result(end.value)
        return future

    def close(self) -> None:
        pass

    async def get(self, key: bytes, **options: object) -> KeyFound:
        return (await self.get_many([key], **options))[key]

    async def get_many(self, keys: Sequence[bytes], **options: object) -> dict[bytes, KeyFound]:
        self.reads += keys
        self.thorough_reads += keys if options.get("thorough") else []
        return {key: KeyFound(self._records(key), 1, 1, complete=True) for key in keys}

    async def store(self, *entries: Entry, **options: object) -> tuple[EntryStored, ...]:
        for entry in entries:
            author, now_s = self.identity.public_key, self.contents.now_s
            record = Record(entry.key, entry.subkey, entry.value, author, now_s, now_s + entry.lifetime_s, bytes(64))
            self.contents.records.setdefault(entry.key, {})[author, entry.subkey] = record
        return tuple(EntryStored(1, {}, 1, 1) for _ in entries)

    def _records(self, key: bytes) -> tuple[Record, ...]:
        if key in self.contents.hidden:
            return ()
        return tuple(record for record in self.contents.records.get(key, {}).values() if record.value)


class Calling(nn.Module):
    """The model of a job, whose middle layer asks experts."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mixture = RemoteMixtureOfExperts(small_grid(), k=2)

    def forward(self, x: Tensor) -> Tensor:
        mixed, balance = self.mixture.with_balance(self.below(x))
        return self.above(mixed) + balance


def calling() -> nn.Module:
    return Calling()


def vectors() -> SimpleNamespace:
    """Data for it."""
    x = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(0))
    return SimpleNamespace(train=TensorDataset(x, x.flip(1)), held_out=TensorDataset(x[:8], x[:8].flip(1)))


class LocalClient(Caller):
    """Has all experts of a grid in this process. `fails` says of a call why it fails, or None."""

    def __init__(self, config: ExpertsConfig, fails: Callable[[Call], str | None] = lambda _: None) -> None:
        self.config, self.fails = config, fails
        self.experts = {one: HostedExpert(build_expert(config, one, ()), config) for one in config.places.experts()}
        self.calls: list[Call] = []
        # Calls come from inside an operator, where torch records no graph in this thread.
        self._thread = ThreadPoolExecutor(1)

    def __deepcopy__(self, memo: object) -> "LocalClient":
        return self

    def find(self, search: BeamSearch) -> list[list[tuple[Expert, str]]]:
        search.take_all(self.config.grid)
        return [[(expert, "host") for expert in found] for found in search.found()]

    def call(self, calls: Sequence[Call]) -> list[Future[Answered | Failed]]:
        self.calls += calls
        return [self._thread.submit(self._result, call) for call in calls]

    def _result(self, call: Call) -> Answered | Failed:
        why, expert = self.fails(call), self.experts[call.expert]
        if why is not None:
            return Failed(why)
        if call.updates is None:
            output = expert.forward(call.tensors[0], training=call.training).clone()
            return Answered(output, expert.updates, 0, 0.0)
        staleness = expert.updates - call.updates
        return Answered(expert.backward(*call.tensors, 1), expert.updates, staleness, 0.0)
