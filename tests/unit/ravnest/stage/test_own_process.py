"""The program of a stage's process, with stand-ins for its starter and for the stage."""

import signal
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ravnest.errors import InvalidInput, NodeLost, RunFailed, WrongMessage
from ravnest.stage.line import GET_READY, IS_READY, Line
from ravnest.stage.messages import START_DEADLINE_S
from ravnest.stage.orphan import LEAVE_S, Leash
from ravnest.stage.own_process import (
    StageOrder,
    StageOutcome,
    heard,
    notice_on_sigterm,
    packed,
    process_space,
    serve,
    told,
)
from ring_allreduce.transport import PeerAddress
from tests.support.local import setups_of, tiny_job


class Process:
    """A stage's process that fails with `error`, where it is to."""

    error: Exception | None = None
    address = PeerAddress("127.0.0.1", 5000, 5001)
    samples = (240, 10)
    holds = ("first.weight",)

    trains = False

    def __init__(self, setup: Any, host: str) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def give_notice(self) -> None: ...

    def run(self, peers: Any) -> None:
        self.began.set()
        assert self.may_end.wait(60)
        if self.error is not None:
            raise self.error


class Watched(Leash):
    """A leash that remembers how long it was, and ends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[float | None] = []

    def allow(self, seconds: float) -> None:
        self.lengths.append(seconds)

    def release(self) -> None:
        self.lengths.append(None)


class Starter(Line):
    """The other end of the line: it says these things, and hears the answers. Then it is gone, or waits for ever."""

    def __init__(self, *says: bytes, leaves: bool = False) -> None:
        self._says = list(says)
        self._leaves = leaves
        self.heard: list[Any] = []

    def send(self, message: bytes) -> None:
        self.heard.append(message if message == IS_READY else heard(message))

    def receive(self) -> bytes:
        if self._says:
            return self._says.pop(0)
        if not self._leaves:
            threading.Event().wait()
        raise EOFError


def order() -> bytes:
    setups, _ = setups_of(tiny_job(), parts=(1,))
    return packed(StageOrder(next(iter(setups.values())), "127.0.0.1"))


def made(error: Exception | None = None) -> Any:
    stage = Process(None, "127.0.0.1")
    stage.error = error
    return stage


def test_a_process_that_is_to_get_ready_waits_without_a_limit_and_is_a_stage_then() -> None:
    starter, leash = Starter(GET_READY + order(), order(), told({"driver": Process.address})), Watched()
    serve(starter, leash, lambda setup, host: cast("Any", made()))
    ready, address, outcome = starter.heard
    assert (ready, address.samples, outcome) == (IS_READY, (240, 10), StageOutcome())
    assert leash.lengths == [START_DEADLINE_S, None, START_DEADLINE_S, START_DEADLINE_S, None, LEAVE_S]


def test_what_keeps_a_process_from_getting_ready_is_said() -> None:
    starter = Starter(GET_READY + b"no order", leaves=True)
    with pytest.raises(EOFError):
        serve(starter, Watched(), lambda setup, host: cast("Any", made()))
    (said,) = starter.heard
    assert isinstance(said, RunFailed)


@pytest.mark.parametrize(
    ("error", "said"),
    [(None, None), (RuntimeError("out of\nmemory"), "out of memory"), (ValueError(), "ValueError")],
)
def test_a_failure_of_a_stage_is_its_outcome_in_one_line(error: Exception | None, said: str | None) -> None:
    starter, leash = Starter(order(), told({"driver": Process.address})), Watched()
    serve(starter, leash, lambda setup, host: cast("Any", made(error)))
    address, outcome = starter.heard
    assert address.samples == (240, 10)
    assert address.holds == ("first.weight",)
    assert outcome.error == said
    assert outcome == StageOutcome() or (outcome.details or "").startswith("Traceback")
    # Nobody may hear that the process is not wanted any more: it ends by itself before it runs, and after.
    assert leash.lengths == [START_DEADLINE_S, START_DEADLINE_S, None, LEAVE_S]


@pytest.mark.parametrize(
    "error", [InvalidInput("no such data", path="job.yaml", key="data", hint="bring it"), ValueError("odd\nvalue")]
)
def test_what_keeps_a_stage_from_beginning_is_told(error: Exception) -> None:
    def fails(setup: object, host: str) -> Any:
        raise error

    starter = Starter(order())
    serve(starter, Watched(), fails)
    (said,) = starter.heard
    if isinstance(error, InvalidInput):
        assert (str(said), said.path, said.key, said.hint) == (str(error), "job.yaml", "data", "bring it")
    else:
        assert type(said) is RunFailed
        assert str(said) == "odd value"


@pytest.mark.parametrize("said", [b"", b"[]", b'{"at": {}}', b'{"outcome": {"x": 1}}', b'{"wrong": {}}', b"\xff"])
def test_what_no_stage_says_is_refused(said: bytes) -> None:
    with pytest.raises(RunFailed, match="which is nothing that one says"):
        heard(said)


@pytest.mark.parametrize("trains", [False, True])
def test_without_its_starter_a_stage_goes_on_if_it_trains(trains: bool) -> None:
    stage, ended = made(), threading.Event()
    stage.trains = trains
    stage.may_end.clear()
    starter = Starter(order(), told({"driver": Process.address}), leaves=True)
    work = threading.Thread(target=serve, args=(starter, Watched(), lambda setup, host: stage, ended.set))
    work.start()
    assert stage.began.wait(60)
    assert trains or ended.wait(60)
    stage.may_end.set()
    work.join(60)
    assert ended.is_set() is not trains
    assert starter.heard[-1] == StageOutcome()


def test_a_sigterm_gives_notice_and_ends_nothing_while_the_stage_runs() -> None:
    before, notices = signal.getsignal(signal.SIGTERM), []
    with notice_on_sigterm(lambda: notices.append(1)):
        signal.raise_signal(signal.SIGTERM)
    assert notices == [1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_another_thread_no_handler_is_set() -> None:
    before, inside = signal.getsignal(signal.SIGTERM), []

    def run() -> None:
        with notice_on_sigterm(lambda: None):
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10.0)
    assert inside == [before]


def test_the_id_of_a_process_counts_in_one_namespace_of_one_start_of_a_machine(tmp_path: Path) -> None:
    def machine(name: str, boot: str, namespace: str) -> Path:
        (tmp_path / name / "sys/kernel/random").mkdir(parents=True)
        (tmp_path / name / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
        (tmp_path / name / "self/ns").mkdir(parents=True)
        (tmp_path / name / "self/ns/pid").symlink_to(namespace)
        return tmp_path / name

    known = [
        machine("this", "b1", "pid:[1]"),
        machine("container", "b1", "pid:[2]"),
        machine("other", "b2", "pid:[1]"),
        tmp_path / "a system without /proc",
    ]
    spaces = [process_space(proc) for proc in known]
    assert len(set(spaces)) == 4
    assert [process_space(proc) for proc in known] == spaces


def caused(error: Exception, by: BaseException) -> Exception:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "here"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (OSError(28, "No space left on device"), True),
        (caused(RunFailed("the reader has not answered"), TimeoutError()), True),
        (NodeLost("the driver has been silent"), True),
        (WrongMessage("c0.s0", "sent what none sends"), True),
        (FileNotFoundError(2, "No such file", "words.txt"), False),
        (PermissionError(13, "Permission denied", "words.txt"), False),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), False),
        (RunFailed("the loss of micro-batch 3 is nan: diverged"), False),
        (ValueError("the user's own"), False),
    ],
)
def test_what_another_machine_may_have_is_told_from_what_the_job_does_wrong_on_every_machine(
    error: Exception, here: bool
) -> None:
    starter = Starter(order(), told({"driver": Process.address}))
    serve(starter, Watched(), lambda setup, host: cast("Any", made(error)))
    assert starter.heard[-1].of_machine is here
