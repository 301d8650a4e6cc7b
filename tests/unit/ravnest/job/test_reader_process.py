"""What a reader writes is what the process that started it hears; tests/integration/test_readers.py starts some."""

import queue
from io import BytesIO

import torch

from ravnest.errors import InvalidInput
from ravnest.job.materials import JobData
from ravnest.job.reader_process import answer, read
from ravnest.job.readers import hear
from ravnest.training.batches import SampleSet

ROWS = [({"x": torch.ones(2, dtype=torch.bfloat16) * i, "mask": True}, {"a": i, "b": torch.empty(0)}) for i in range(6)]
DATA = JobData(SampleSet(ROWS), SampleSet([(torch.ones(2), (1, 2.5))], "held_out"), None)


def heard(*written: BytesIO) -> list:
    answers: queue.SimpleQueue = queue.SimpleQueue()
    hear(BytesIO(b"".join(each.getvalue() for each in written)), answers)
    found = []
    while (one := answers.get(timeout=1)) is not None:
        found.append(one)
    return found


def written(request: dict) -> BytesIO:
    out = BytesIO()
    answer(out, lambda asked: read(DATA, asked), request)
    return out


def test_tensors_of_every_form_come_as_they_were_read():
    first = written({"part": "train", "indices": [2, 5], "epoch": 0, "digests": False})
    second = written({"part": "held_out", "indices": [0], "epoch": 0, "digests": False})
    (header, tensors), (other, others) = heard(first, second)
    assert (header["names"], header["inputs"], header["targets"]) == (["x", "mask"], 2, ["a", "b"])
    assert [(each.dtype, each.tolist()) for each in tensors] == [
        (torch.bfloat16, [[2.0, 2.0], [5.0, 5.0]]),
        (torch.bool, [True, True]),
        (torch.int64, [2, 5]),
        (torch.float32, [[], []]),
    ]
    assert (other["names"], other["targets"], [each.tolist() for each in others]) == ([], [], [[[1, 1]], [1], [2.5]])


def test_what_the_user_s_data_raise_is_an_answer():
    def refuses(asked):
        raise InvalidInput("is missing", key="data.factory", hint="bring it")

    out = BytesIO()
    answer(out, refuses, {})
    ((header, tensors),) = heard(out)
    assert (header["error"], header["key"], header["hint"], tensors) == ("is missing", "data.factory", "bring it", [])


def test_digests_do_not_depend_on_the_order_of_reading():
    asked = {"part": "train", "indices": [0, 3, 1], "epoch": 0, "digests": True}
    answers = [read(DATA, {**asked, "backwards": backwards}) for backwards in (False, True)]
    assert answers[0] == answers[1]
    assert len(set(answers[0][0]["digests"])) == 3


def test_an_answer_that_is_cut_off_is_none():
    whole = written({"part": "train", "indices": [2, 5], "epoch": 0, "digests": False}).getvalue()
    assert heard(BytesIO(whole[:-1])) == []
    assert heard(BytesIO(b"no json\n")) == []
