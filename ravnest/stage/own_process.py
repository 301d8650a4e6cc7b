"""The program of a stage's process: `python -m ravnest.stage.own_process NAME DESCRIPTOR`.

Its starter, the stage's actor (ravnest/driver/ray/stage_host.py), speaks to it over a line: first comes what the stage
is to be, then the addresses of its peers; the answers are its own address, and in the end a StageOutcome.

What the stage is to be holds the user's job and the model's graph. It is pickled by the driver, goes through Ray's
authenticated channel, as all arguments of Ray's calls do, and comes from the process that has started this one. Nothing
else is ever unpickled: the answers, which the driver opens, are JSON.

Before that the line may ask it to get ready: it loads the libraries and the code that such a stage needs, and waits.

When the starter is gone, a stage that does not train yet ends. One that trains goes on: its driver may live, or another
driver may take the run over. How long it waits for one is orphan.py's. In: the descriptor. Out: a stage at work.
"""

import json
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ravnest.errors import InvalidInput, NodeLost, RavnestError, RunFailed, WrongMessage
from ravnest.factories import import_modules, resolve
from ravnest.free_memory import share_freed
from ravnest.stage.assembling import began_s
from ravnest.stage.line import GET_READY, IS_READY, Line
from ravnest.stage.messages import START_DEADLINE_S
from ravnest.stage.orphan import LEAVE_S, Leash
from ravnest.stage.process import StageProcess
from ravnest.stage.setup import StageAddress, StageSetup, UserCode
from ring_allreduce.transport import PeerAddress

_OF_MACHINE = (MemoryError, OSError, torch.OutOfMemoryError, torch.AcceleratorError, NodeLost, WrongMessage)
_NO_MEMORY = "can't allocate memory"  # of a processor's: torch has no class of errors for it
_ASSERTED = "device-side assert"  # an index beyond its table, say, which torch tells as it tells of a broken device
_OF_PATHS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


@dataclass(frozen=True)
class StageOrder:
    """What a process is to be."""

    setup: StageSetup
    host: str
    """The address at which other stages reach this machine."""
    shipped: str | None = None
    """Where Ray has brought the job's code, the name of the job file in this process's working folder; None where the
    job lies at the same place as for the driver."""


@dataclass(frozen=True)
class StageOutcome:
    """How a stage ended. `error` is one line and `details` the traceback; both are None without an error.

    `of_machine`: it failed for want of something that another machine, or this one later, may have (`fails_here`).
    """

    error: str | None = None
    details: str | None = None
    of_machine: bool = False


def process_space(proc: Path = Path("/proc")) -> str:
    """What tells where the id of this process counts: this start of this machine, and its namespace of processes.

    Machines may have one name, as `localhost` or that of a copied image, and containers of one machine count their
    processes each by itself. `proc` is where the system tells of itself; one without it is known by its name and its
    network card.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {(proc / 'self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {uuid.getnode():x}"


def packed(order: StageOrder) -> bytes:
    """The order as bytes, for Ray's channel alone."""
    return pickle.dumps(order)


def told(said: StageAddress | StageOutcome | Exception | Mapping[str, PeerAddress]) -> bytes:
    """A message of the line, which `heard` opens where it is no list of peers."""
    match said:
        case StageAddress():
            return json.dumps({"at": asdict(said)}).encode()
        case StageOutcome():
            return json.dumps({"outcome": asdict(said)}).encode()
        case InvalidInput():
            wrong = {"text": str(said), "message": said.message, "key": said.key, "path": said.path, "hint": said.hint}
            return json.dumps({"wrong": wrong}).encode()
        case Exception():
            return json.dumps({"failed": " ".join(str(said).split()) or type(said).__name__}).encode()
        case _:
            return json.dumps({peer: asdict(at) for peer, at in said.items()}).encode()


def heard(message: bytes) -> StageAddress | StageOutcome | RavnestError:
    """What a stage's process has said. Raises RunFailed for what none says."""
    try:
        said = json.loads(message)
        match said:
            case {"at": dict() as at}:
                samples = None if at["samples"] is None else (int(at["samples"][0]), int(at["samples"][1]))
                read = {"peer": PeerAddress(**at["peer"]), "samples": samples, "holds": tuple(map(str, at["holds"]))}
                return StageAddress(**(at | read))
            case {"outcome": dict() as outcome}:
                return StageOutcome(**outcome)
            case {"wrong": dict() as wrong}:
                error = InvalidInput(wrong["message"], path=wrong["path"], key=wrong["key"], hint=wrong["hint"])
                error.args = (wrong["text"],)
                return error
            case {"failed": str() as text}:
                return RunFailed(text)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise RunFailed(f"a stage's process says {message[:100]!r}, which is nothing that one says") from error
    raise RunFailed(f"a stage's process says {message[:100]!r}, which is nothing that one says")


def serve(
    line: Line,
    leash: Leash,
    make: Callable[[StageSetup, str], StageProcess] = StageProcess,
    end: Callable[[], Any] = lambda: os._exit(1),
) -> None:
    """Be the stage that the starter orders, until its end.

    Arguments:
        leash: ends the process where nothing is heard while it starts and leaves.
        make: makes the stage's process from its setup and the address of this machine.
        end: ends the process at once, when the starter is gone and the stage does not train yet.
    """
    leash.allow(START_DEADLINE_S)
    message = line.receive()
    if message.startswith(GET_READY):
        line.send(_got_ready(message.removeprefix(GET_READY)))
        leash.release()  # it waits for as long as its starter lives
        message = line.receive()
        leash.allow(START_DEADLINE_S)
    order: StageOrder = pickle.loads(message)
    try:
        stage = make(*_unpacked(order))
    except Exception as error:  # noqa: BLE001 - every error is the driver's to tell
        line.send(told(error))
        return
    leash.allow(START_DEADLINE_S)  # the others may take longer
    cores = len(os.sched_getaffinity(0))
    address = StageAddress(
        stage.address, process_space(), os.getpid(), cores, stage.samples, holds=stage.holds, began_s=began_s()
    )
    line.send(told(address))
    peers = {peer: PeerAddress(**at) for peer, at in json.loads(line.receive()).items()}
    leash.release()  # a stage that runs has deadlines of its own
    threading.Thread(target=_watch, args=(line, stage, end), name="starter", daemon=True).start()
    outcome = _run(stage, peers)
    leash.allow(LEAVE_S)
    with suppress(OSError):  # the starter is gone
        line.send(told(outcome))


def _unpacked(order: StageOrder) -> tuple[StageSetup, str]:
    setup = order.setup
    if order.shipped is not None:
        here = Path.cwd()
        code, spare = UserCode(str(here / order.shipped), (str(here),)), setup.successor
        setup = replace(setup, code=code, successor=None if spare is None else replace(spare, code=code))
    sys.path[:0] = [path for path in setup.code.search_dirs if path not in sys.path]
    return setup, order.host


def _got_ready(practice: bytes) -> bytes:
    """Load what the stage of an order needs, and nothing that holds memory of its own. Returns what is answered."""
    try:
        setup, _ = _unpacked(pickle.loads(practice))
        dirs = [Path(each) for each in setup.code.search_dirs]
        import_modules(setup.program.imports, dirs)
        if setup.is_first or setup.is_last:
            resolve(setup.job.data.factory, dirs)
    except Exception as error:  # noqa: BLE001 - whatever it is, the stage itself would say so
        return told(error)
    return IS_READY


def _run(stage: StageProcess, peers: Mapping[str, PeerAddress]) -> StageOutcome:
    try:
        with notice_on_sigterm(stage.give_notice):
            stage.run(peers)
    except BaseException as error:  # noqa: BLE001 - every error is reported to the driver
        line = " ".join(str(error).split()) or type(error).__name__
        return StageOutcome(line, traceback.format_exc(), fails_here(error))
    return StageOutcome()


def fails_here(error: BaseException) -> bool:
    """Whether an error, or what has caused it, is of this machine and not of the job: memory or a disk that is full, a
    device that fails, a connection that ends, a driver or a neighbour that is gone or sends what cannot be.

    A path that is missing or closed to us is the job's mistake, which every machine would meet, and so is all else.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RuntimeError) and _ASSERTED in str(cause):
            return False
        if isinstance(cause, _OF_MACHINE) and not isinstance(cause, _OF_PATHS):
            return True
        if isinstance(cause, RuntimeError) and _NO_MEMORY in str(cause):
            return True
        cause = cause.__cause__
    return False


def _watch(line: Line, stage: StageProcess, end: Callable[[], Any]) -> None:
    """Wait until the starter is gone. What has not begun to train holds nothing that anybody could go on from."""
    with suppress(EOFError, OSError):
        while True:
            line.receive()
    if not stage.trains:
        end()


@contextmanager
def notice_on_sigterm(notice: Callable[[], None]) -> Iterator[None]:
    """Inside the block, SIGTERM gives notice and ends nothing. Only a main thread may set that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: notice())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    """Serve the starter at the other end of the descriptor that is named on the command line."""
    descriptor = int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    share_freed()
    with suppress(EOFError, ConnectionError):  # the starter was gone before the stage had begun
        serve(Line(socket.socket(fileno=descriptor)), Leash())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a thread of the user's code does not keep the process


if __name__ == "__main__":
    main()
