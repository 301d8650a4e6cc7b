"""Data without numbers, as a torch IterableDataset or a streaming dataset of Hugging Face: read as if they had some.

In: a dataset that says how it is divided and where it stands (`Stream`). Out: samples by number, and which numbers make
a cluster's k-th micro-batch. The first and the last stage of a cluster read the same samples, each for itself, so order
has to depend on numbers alone.

A stream is divided into its shards, often files. Sample n of shard s has the number n·shards + s; where a shard ends it
begins again, so there is no last number. A cluster has the shards from floor(share[0]·shards) up to
floor(share[1]·shards), and reads whole micro-batches from each in turn. So a process that reads ahead has shards of its
own, and none reads what another does.

A stream can only be read forwards. To go on at a number it starts from the last bookmark before it, which is what
`state_dict` returned there. Every SEGMENT samples each reader takes a bookmark and goes on from it at once, through
`load_state_dict`, so that whoever comes later to that bookmark reads the same samples, even of a dataset whose state
leaves something out (a buffer that shuffles, which is filled anew). Bookmarks are written to a folder of this machine,
so that a resumed run does not read everything again. One is used only if the sample behind it is still the same.
"""

import hashlib
import json
import math
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from torch.utils.data import IterableDataset

from ravnest.errors import InvalidInput
from ravnest.factories import user_code
from ravnest.training.batches import SampleSet
from ravnest.training.draws import seed_generators, seed_of
from ravnest.training.fingerprint import digest
from ravnest.training.sampler import ENDLESS, Sampler
from ravnest.user_cache import kept_folder

SEGMENT = 1024
"""The samples between two bookmarks."""

CHECKED_S = 1.0
"""For so long planning reads a shard before it looks whether that goes on after load_state_dict."""

_MOST_NOTED, _MOST_KEPT = 64, 8
_MARK = {"number": int, "pass": int, "in_pass": int, "state": dict, "before": str}
_REMEMBERED = 32
_CHECKED = 3
_KEY = "data.factory"
_PROTOCOL = (
    "give it `num_shards` (a number), `shard(num_shards, index)` (a dataset of one of so many parts), `state_dict()`"
    " and `load_state_dict(state)` (numbers, texts, lists and dicts that say where it stands); Hugging Face's streaming"
    " datasets have them. Or bring a dataset with __len__ and __getitem__"
)


class Stream(Protocol):
    """What a dataset without numbers has to have. It may have `set_epoch(epoch)`, which is called before each pass."""

    @property
    def num_shards(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def shard(self, num_shards: int, index: int) -> "Stream": ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def bookmarks_folder(*named: object) -> Path | None:
    """Where this user's bookmarks in the data that are so named are kept; None where nothing is to be kept."""
    return kept_folder(f"streams/{hashlib.sha256(repr(named).encode()).hexdigest()[:32]}")


def is_stream(dataset: Any) -> bool:
    """Whether samples of a dataset can only be read one after another."""
    if isinstance(dataset, IterableDataset):  # which inherits a __getitem__ that does nothing
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


class NumberedStream:
    """A stream whose samples are read by number. Reading forwards is cheap, and reading backwards is not."""

    def __init__(self, stream: Stream, seed: int, folder: Path | None = None) -> None:
        """seed: of what the dataset draws from the global generators. folder: for bookmarks; None: they are not kept.

        Raises InvalidInput where the dataset lacks a part of the protocol.
        """
        lacking = [name for name in ("shard", "state_dict", "load_state_dict") if not hasattr(stream, name)]
        shards = getattr(stream, "num_shards", None)
        if not isinstance(shards, int) or shards < 1:
            lacking.insert(0, "num_shards")
        if lacking:
            message = f"`train` is a {type(stream).__name__}, whose samples have no numbers, and it has no {lacking[0]}"
            raise InvalidInput(message, key=_KEY, hint=_PROTOCOL)
        assert isinstance(shards, int)
        self.shards = shards
        self._cursors = [_Cursor(stream, shards, index, seed, folder) for index in range(shards)]

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Any:
        number, shard = divmod(index, self.shards)
        return self._cursors[shard].read(number)

    def check_going_on(self) -> None:
        """Raises InvalidInput where a shard does not go on after load_state_dict where it was at state_dict."""
        self._cursors[0].check_going_on()


class _Cursor:
    """One shard, and where it stands."""

    def __init__(self, whole: Stream, shards: int, index: int, seed: int, folder: Path | None) -> None:
        self._whole, self._shards, self._index, self._seed = whole, shards, index, seed
        self._file = None if folder is None else folder / f"shard-{index}-of-{shards}.json"
        self._stream: Stream = whole
        self._samples: Iterator[Any] | None = None
        self._number, self._pass, self._in_pass = 0, 0, 0  # of the next sample
        self._began = 0  # the number at which the last bookmark was, or the beginning
        self._remembered: OrderedDict[int, Any] = OrderedDict()
        self._noted: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def read(self, number: int) -> Any:
        """The sample of that number, over all passes."""
        if number in self._remembered:
            return self._remembered[number]
        if number < self._number:
            near = max((at for at in self._noted if at <= number), default=0)
            self._go_to(self._noted.get(near))
        elif number - self._number > SEGMENT:
            self._go_to_kept(number)
        while self._number <= number:
            self._next()
        return self._remembered[number]

    def check_going_on(self) -> None:
        """See NumberedStream."""
        until_s = time.monotonic() + CHECKED_S
        number = _CHECKED
        self.read(number - 1)
        while time.monotonic() < until_s and number < 2 * SEGMENT:
            self.read(number)
            number += 1
        mark = self._mark()
        before = [digest(self.read(number + place)) for place in range(_CHECKED)]
        self._go_to(mark)
        if before != [digest(self.read(number + place)) for place in range(_CHECKED)]:
            raise InvalidInput(
                f"`train` ({type(self._whole).__name__}) gives other samples after load_state_dict than it gave after"
                " state_dict: samples would be left out or read twice",
                key=_KEY,
                hint="a buffer that shuffles is not in its state: shuffle the files, or write the samples shuffled",
            )

    def _next(self) -> Any:
        with user_code(f"reading shard {self._index} of `train`", key=_KEY):
            if self._samples is None:
                self._begin_pass()
            elif self._number % SEGMENT == 0 and self._number != self._began:
                self._note()
            seed_generators(seed_of(self._seed, 2, self._index, self._number))
            assert self._samples is not None
            sample = next(self._samples, self)
            if sample is self and self._in_pass:
                self._pass, self._in_pass = self._pass + 1, 0
                self._begin_pass()
                sample = next(self._samples, self)
        if sample is self:
            raise InvalidInput(f"shard {self._index} of {self._shards} of `train` has no sample", key=_KEY)
        self._keep(sample)
        self._remembered[self._number] = sample
        if len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        self._number, self._in_pass = self._number + 1, self._in_pass + 1
        return sample

    def _begin_pass(self, state: dict[str, Any] | None = None) -> None:
        self._stream = self._whole.shard(num_shards=self._shards, index=self._index)
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(self._pass)
        if state is not None:
            self._stream.load_state_dict(state)
        self._samples = iter(self._stream)

    def _mark(self) -> dict[str, Any]:
        with user_code("state_dict of `train`", key=_KEY):
            state = json.dumps(self._stream.state_dict())
        return {"number": self._number, "pass": self._pass, "in_pass": self._in_pass, "state": json.loads(state)}

    def _note(self) -> None:
        """Take a bookmark, and go on from it."""
        mark = self._noted[self._number] = self._mark()
        if len(self._noted) > _MOST_NOTED:
            self._noted.popitem(last=False)
        self._began = self._number
        self._begin_pass(mark["state"])

    def _go_to(self, mark: dict[str, Any] | None) -> None:
        """Stand where a bookmark says; at the beginning without one."""
        self._remembered.clear()
        if mark is None:
            self._number, self._pass, self._in_pass, self._began, self._samples = 0, 0, 0, 0, None
            return
        self._number, self._pass, self._in_pass = mark["number"], mark["pass"], mark["in_pass"]
        self._began = self._number
        if self._number % SEGMENT == 0:
            self._noted[self._number] = mark
        with user_code("load_state_dict of `train`", key=_KEY):
            self._begin_pass(mark["state"])

    def _keep(self, sample: Any) -> None:
        """Write down the bookmark before `sample`, if there is one."""
        mark = self._noted.get(self._number)
        if self._file is None or mark is None:
            return
        kept = [each for each in self._kept() if each["number"] != self._number]
        kept.append({**mark, "before": digest(sample).hex()})
        with suppress(OSError):  # of a full disk, for one: then a resumed run reads more again
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._file.parent, delete=False) as file:
                json.dump(kept[-_MOST_KEPT:], file)
            Path(file.name).replace(self._file)

    def _kept(self) -> list[dict[str, Any]]:
        """The bookmarks on the disk; none where there are none that can be read."""
        try:
            found = json.loads(self._file.read_text()) if self._file is not None else []
            return [each for each in found if all(type(each[key]) is kind for key, kind in _MARK.items())]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return []

    def _go_to_kept(self, number: int) -> None:
        """Go on from the last bookmark on the disk up to `number`, if it is before a sample that is still there."""
        marks = [each for each in self._kept() if self._number < each["number"] <= number]
        for mark in sorted(marks, key=lambda each: -int(each["number"])):
            stood = self._number, self._pass, self._in_pass, self._began, self._stream, self._samples
            try:
                self._go_to(mark)
                sample = self._next()
            except InvalidInput:
                sample = None
            if sample is not None and digest(sample).hex() == mark["before"]:
                return
            self._number, self._pass, self._in_pass, self._began, self._stream, self._samples = stood
            self._noted.pop(mark["number"], None)
            self._remembered.clear()


class StreamSampler:
    """Which samples of a stream make up a cluster's micro-batches. It has no position of its own."""

    def __init__(self, shards: int, share: tuple[float, float], micro_batch: int) -> None:
        """Raises InvalidInput where the share has no shard."""
        self._mine = range(math.floor(share[0] * shards), math.floor(share[1] * shards))
        self._shards, self._micro_batch = shards, micro_batch
        if not self._mine:
            raise InvalidInput(
                f"a cluster's share of the {shards} shards of `train` is less than one: bring a stream of more shards,"
                " or plan fewer clusters",
                key=_KEY,
            )

    def epoch(self, k: int) -> int:
        """0: numbers go on over all passes."""
        return 0

    def lane(self, k: int) -> int:
        """The place, among the cluster's shards, of the one that micro-batch `k` is read from."""
        return k % len(self._mine)

    def batch(self, k: int) -> list[int]:
        """The numbers of the samples of micro-batch `k`, which counts from 0."""
        round_, place = divmod(k, len(self._mine))
        first = round_ * self._micro_batch
        return [(first + at) * self._shards + self._mine[place] for at in range(self._micro_batch)]


def sampler_of(train: SampleSet, seed: int, share: tuple[float, float], micro_batch: int) -> Sampler | StreamSampler:
    """Which samples make up the micro-batches of a cluster with this share. Raises InvalidInput where it has none."""
    if isinstance(train.dataset, NumberedStream):
        return StreamSampler(train.dataset.shards, share, micro_batch)
    return Sampler(len(train), seed, share, micro_batch)
