"""Processes that read data: for planning, which compares them, and ahead of a stage."""

import os
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from ravnest.errors import InvalidInput, RunFailed
from ravnest.job.materials import load_data
from ravnest.job.readers import ReadAhead, Reader
from ravnest.planning.reading import check_reading
from ravnest.training.batches import BatchSource, target_tensors
from ravnest.training.sampler import EvaluationBatches, Sampler
from ravnest.training.streams import sampler_of
from tests.support.local import JOB_FILE, tiny_job

pytestmark = pytest.mark.timeout(300)

SENTENCES = {"factory": "drawing:sentences", "collate_fn": "drawing:masked"}

FAULTY = """
import os, time
class Faulty:
    def __init__(self, how): self.how = how
    def __len__(self): return 24
    def __getitem__(self, index):
        print("noise on standard output")
        if index == 5 and self.how == "raises": raise ValueError("no such picture")
        if index == 5 and self.how == "dies": os._exit(7)
        if index == 5 and self.how == "hangs": time.sleep(3600)
        return [float(index)], index
def data(how):
    from types import SimpleNamespace
    return SimpleNamespace(train=Faulty(how), held_out=Faulty("well"))
"""


def same(one, other):
    tensors = [(*inputs, *target_tensors(target)) for inputs, target in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


def test_batches_read_ahead_are_those_of_the_stage_itself_in_any_order():
    job = tiny_job(model={"factory": "drawing:guesser"}, data=SENTENCES)
    data = load_data(job, JOB_FILE)
    spans, sampler = EvaluationBatches(len(data.held_out), 5), Sampler(len(data.train), job.seed, (0.0, 1.0), 4)
    readers = [Reader(job, JOB_FILE) for _ in range(2)]
    assert [reader.started() for reader in readers] == [(96, 24)] * 2
    ahead = ReadAhead(data, sampler, spans, ["ids"], readers)
    alone = BatchSource(data, sampler, spans, ["ids"])
    for number in range(sampler.per_epoch - 3, sampler.per_epoch + 3):
        assert same(ahead.train(number), alone.train(number))
    for number in range(len(spans)):
        assert same(ahead.held_out(number), alone.held_out(number))
    assert same(ahead.train(sampler.per_epoch + 3), alone.train(sampler.per_epoch + 3))
    assert same(ahead.held_out(0), alone.held_out(0)), "the next evaluation begins anew"
    ahead.close()
    with pytest.raises(RunFailed, match="has ended by itself"):
        ahead.train(200)


@pytest.fixture
def faulty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "faulty_for_readers.py").write_text(FAULTY)
    return tmp_path / "job.yaml"


def test_what_goes_wrong_in_a_reader_is_told(faulty_file: Path):
    def reader_of(how: str) -> Reader:
        job = tiny_job(data={"factory": "faulty_for_readers:data", "args": {"how": how}})
        return Reader(job, faulty_file)

    readers = {how: reader_of(how) for how in ("raises", "dies", "hangs")}
    for reader in readers.values():
        assert reader.started() == (24, 24)
        reader.ask("train", [4], 0)
        reader.ask("train", [5], 0)
        assert target_tensors(reader.batch()[1])[0].tolist() == [4]
    with pytest.raises(InvalidInput, match="reading samples 5 raised ValueError: no such picture") as caught:
        readers["raises"].batch()
    assert caught.value.key == "data.factory"
    with pytest.raises(RunFailed, match=r"has ended by itself \(exit code 7\)"):
        readers["dies"].batch()
    for reader in readers.values():
        reader.close()
    assert not [child for child in psutil.Process(os.getpid()).children() if "reader_process" in child.cmdline()]


STREAMED = """
from types import SimpleNamespace
from torch.utils.data import IterableDataset
class Files(IterableDataset):
    def __init__(self, own): self.own, self.at, self.num_shards = own, 0, len(own)
    def shard(self, num_shards, index): return Files(self.own[index::num_shards])
    def state_dict(self): return {"at": self.at}
    def load_state_dict(self, state_dict): self.at = state_dict["at"]
    def __iter__(self):
        for place in range(self.at, 20 * len(self.own)):
            self.at = place + 1
            yield [float(self.own[place // 20])], place % 20
def data():
    return SimpleNamespace(train=Files([0, 1, 2]), held_out=[([0.0], 0)])
"""


def test_a_stream_is_read_by_processes_each_of_which_has_shards_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("RAVNEST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "streamed_for_readers.py").write_text(STREAMED)
    file = tmp_path / "job.yaml"
    job = tiny_job(data={"factory": "streamed_for_readers:data"})
    data = load_data(job, file)
    check_reading(job, file, data)
    sampler = sampler_of(data.train, job.seed, (0.0, 1.0), 4)
    readers = [Reader(job, file) for _ in range(2)]
    assert len({reader.started() for reader in readers}) == 1
    ahead, alone = (make(data, sampler, range(0), None) for make in (partial(ReadAhead, readers=readers), BatchSource))
    for number in (*range(20), *range(60, 66)):
        assert same(ahead.train(number), alone.train(number))
    ahead.close()


def test_planning_refuses_draws_that_two_processes_do_not_share():
    for data, refused in (
        ({"factory": "drawing:own_chance"}, r"two processes read different samples \d+ of `train`"),
        (SENTENCES, None),
    ):
        job = tiny_job(data=data)
        if refused is None:
            check_reading(job, JOB_FILE, load_data(job, JOB_FILE))
            continue
        with pytest.raises(InvalidInput, match=refused) as caught:
            check_reading(job, JOB_FILE, load_data(job, JOB_FILE))
        assert (caught.value.key, caught.value.path) == ("data.factory", str(JOB_FILE))
