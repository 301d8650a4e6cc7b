"""Samples of a stream have numbers: the same ones forwards, backwards, after a bookmark and in every process."""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from ravnest.errors import InvalidInput
from ravnest.training import streams
from ravnest.training.batches import SampleSet
from ravnest.training.sampler import ENDLESS
from ravnest.training.streams import NumberedStream, StreamSampler, is_stream, sampler_of

Line = tuple[int, int, int, float]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEGMENT", 32)
    monkeypatch.setattr(streams, "CHECKED_S", 0.0)


class Files(IterableDataset[Line]):
    """A stream of so many files of lines, each of which says where it is from, and what was drawn."""

    def __init__(self, files: int = 3, lines: int = 5, own: list[int] | None = None) -> None:
        self.lines, self.own = lines, list(range(files)) if own is None else own
        self.epoch, self.at, self.read = 0, 0, 0
        self.num_shards = len(self.own)

    def shard(self, num_shards: int, index: int) -> "Files":
        return type(self)(lines=self.lines, own=self.own[index::num_shards])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.at = state_dict["at"]

    def __iter__(self) -> Iterator[Line]:
        for place in range(self.at, len(self.own) * self.lines):
            self.at = place + 1
            file, line = divmod(place, self.lines)
            yield self.own[file], line, self.epoch, random.random()


class Forgetful(Files):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on somewhere else, as a buffer that shuffles does."""
        self.at = state_dict["at"] + 1


def test_numbers_name_file_line_and_pass() -> None:
    stream = NumberedStream(Files(), 0)
    found = [stream[number] for number in range(18)]
    assert [each[:3] for each in found] == [(n % 3, n // 3 % 5, n // 15) for n in range(18)]
    assert len(stream) == ENDLESS
    assert len({each[3] for each in found}) == 18  # draws are others each time


@pytest.mark.parametrize("order", [range(400, -1, -1), [399, 7, 398, 8], [5, 5, 4, 5], [3, 401, 2, 900]])
def test_whatever_the_order_the_samples_are_the_same(order: Sequence[int]) -> None:
    forwards = NumberedStream(Files(lines=70), 0)
    wanted = [forwards[number] for number in range(901)]
    stream = NumberedStream(Files(lines=70), 0)
    assert [stream[number] for number in order] == [wanted[number] for number in order]


def test_another_process_goes_on_from_a_bookmark_on_the_disk(tmp_path: Path) -> None:
    counted: list[Line] = []

    class Counted(Files):
        def __iter__(self) -> Iterator[Line]:
            for sample in super().__iter__():
                counted.append(sample)
                yield sample

    before = NumberedStream(Counted(lines=200), 0, tmp_path)
    wanted = [before[number] for number in range(600)]
    counted.clear()
    after = NumberedStream(Counted(lines=200), 0, tmp_path)
    assert after[599] == wanted[599]
    assert len(counted) <= 32
    # The sample at which the bookmark stands is the first one of a run that is resumed there.
    assert NumberedStream(Counted(lines=200), 0, tmp_path)[3 * 192] == wanted[3 * 192]
    # Where other data stand behind the bookmark, everything is read again.
    counted.clear()
    other = NumberedStream(Counted(lines=200), 1, tmp_path)
    assert other[599][:3] == wanted[599][:3]
    assert other[599] != wanted[599]
    assert len(counted) >= 200
    # A file that is damaged is as none.
    for file in tmp_path.iterdir():
        file.write_text('[{"number": "x"}, 3]')
    assert NumberedStream(Counted(lines=200), 0, tmp_path)[599] == wanted[599]


class Buffered(Files):
    """Reads two lines ahead, which its state leaves out."""

    def __iter__(self) -> Iterator[Line]:
        lines = super().__iter__()
        waiting = list(islice(lines, 2))
        for line in lines:
            yield waiting.pop(0)
            waiting.append(line)


def test_even_where_a_state_leaves_something_out_all_processes_read_the_same(tmp_path: Path) -> None:
    forwards = NumberedStream(Buffered(lines=200), 0, tmp_path)
    wanted = [forwards[number] for number in range(600)]
    assert NumberedStream(Buffered(lines=200), 0, tmp_path)[599] == wanted[599]
    again = NumberedStream(Buffered(lines=200), 0)
    assert [again[number] for number in (599, 200, 599, 0)] == [wanted[number] for number in (599, 200, 599, 0)]
    with pytest.raises(InvalidInput, match="other samples after load_state_dict"):
        NumberedStream(Buffered(lines=200), 0).check_going_on()


def test_a_dataset_that_does_not_go_on_where_it_was_is_refused() -> None:
    NumberedStream(Files(), 0).check_going_on()
    with pytest.raises(InvalidInput, match="other samples after load_state_dict"):
        NumberedStream(Forgetful(), 0).check_going_on()


@pytest.mark.parametrize("lacking", ["num_shards", "shard", "state_dict", "load_state_dict"])
def test_what_the_protocol_lacks_is_named(lacking: str) -> None:
    stream = Files()
    given = {name: getattr(stream, name) for name in ("num_shards", "shard", "state_dict", "load_state_dict")}
    partly = type("Partly", (), {"__iter__": lambda self: iter([]), **{k: v for k, v in given.items() if k != lacking}})
    assert is_stream(partly())
    with pytest.raises(InvalidInput, match=f"has no {lacking}") as raised:
        NumberedStream(partly(), 0)
    assert raised.value.key == "data.factory"


def test_an_empty_shard_and_a_state_that_is_no_json_are_refused() -> None:
    with pytest.raises(InvalidInput, match="shard 1 of 3 of `train` has no sample"):
        NumberedStream(Files(lines=0), 0)[1]

    class Opaque(Files):
        def state_dict(self) -> dict[str, Any]:
            return {"at": object()}

    with pytest.raises(InvalidInput, match="state_dict of `train`"):
        NumberedStream(Opaque(), 0).check_going_on()


def test_clusters_read_shards_of_their_own_and_whole_micro_batches_of_one() -> None:
    samplers = [StreamSampler(5, share, 2) for share in ((0.0, 0.7), (0.7, 1.0))]
    stream = NumberedStream(Files(files=5), 0)
    read = [[[stream[at][:2] for at in sampler.batch(k)] for k in range(6)] for sampler in samplers]
    assert read[0][:4] == [[(0, 0), (0, 1)], [(1, 0), (1, 1)], [(2, 0), (2, 1)], [(0, 2), (0, 3)]]
    assert read[1][:3] == [[(3, 0), (3, 1)], [(4, 0), (4, 1)], [(3, 2), (3, 3)]]
    assert [samplers[0].lane(k) for k in range(4)] == [0, 1, 2, 0]
    with pytest.raises(InvalidInput, match="less than one"):
        StreamSampler(2, (0.1, 0.4), 2)


def test_the_sampler_is_that_of_the_data() -> None:
    stream = SampleSet(NumberedStream(Files(), 0))
    assert isinstance(sampler_of(stream, 0, (0.0, 1.0), 2), StreamSampler)
    assert not isinstance(sampler_of(SampleSet(range(30)), 0, (0.0, 1.0), 2), StreamSampler)
    assert not is_stream(range(3))
    assert is_stream(islice([1], 1))
