"""What a driver knows and its stages do not, in a file of the run's folder: another driver can take the run over.

In: a `DriverState`, after each commit and each change of membership, before the stages hear of it. Out: the file
driver.json, written in one step and readable by its owner alone, because the run's secrets are in it: whoever reads it
can pass for the run's driver. It is there while a run goes on, and after the end of a driver that was killed.
"""

import hashlib
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from cluster_planner import Plan, load_plan, save_plan
from ravnest.checkpoints.run_folder import COMERS
from ravnest.errors import InvalidInput, RunFailed
from ravnest.recovery import with_comers
from ravnest.stage.setup import StageAddress
from ring_allreduce.transport import PeerAddress

VERSION = 2
_MOST_BYTES = 64 << 20


class StagePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a stage of a run listens, and which process it is."""

    node: str
    host: str
    pipeline_port: int
    bulk_port: int
    machine: str
    """Where the id of the process counts (StageAddress)."""
    pid: int
    began_s: float
    """When the process began, in seconds since 1970."""
    born: int = 0
    """The epoch of membership in which the process began."""


class SessionStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a session began, by the checkpoint that it was resumed from."""

    samples: int = 0
    updates: dict[str, int] = {}
    """By cluster."""
    rounds: int = 0
    unmade: dict[str, int] = {}
    """By cluster that had come during the run: those of its updates that nobody made."""


class DriverState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A session of a run as its driver knows it. Counts of a session begin with it, rounds from 1."""

    version: int = VERSION
    term: int
    """How many drivers the session had before this one."""
    plan: str
    """The SHA-256 of the run's plan.yaml. How its clusters are cut by now is in a file beside this one."""
    data: str
    """The fingerprint of the data."""
    address: str | None
    """The address of the Ray cluster; None where Ray was started on the driver's machine."""
    token: str
    keys: dict[str, tuple[str, str]] | None
    """By member of an encrypted run: its public and its secret key."""
    timeline: bool
    threads: dict[str, int]
    """By node: the threads of a stage there."""
    shares: dict[str, tuple[float, float]]
    """By cluster: the part of the data that it reads."""
    start: SessionStart
    stages: dict[str, StagePlace]
    """The stages of all clusters that train."""
    epoch: int
    committed: int
    opened: int
    updates: dict[str, int]
    averaged: dict[str, int]
    """By cluster, also of those that are away: its updates so far, and those of its last averaged snapshot."""
    begun: dict[str, int]
    """By cluster, also of those that have come since: the updates from which it counts in this session."""
    unmade: dict[str, int] = {}
    """By cluster that has come during the run: the updates from which its schedule began, which nobody made."""
    snapshots: dict[int, dict[str, int]]
    """By round that is not committed, and cluster: after how many updates it contributed."""
    stopping: bool
    """Whether the run was coming to its end."""
    left: list[str]
    """The nodes that had left with notice."""
    noticed: list[str] = []
    """Those of them whose systems had given it, and no user."""
    elapsed_s: float
    """The seconds since training began."""


class TakenOver(RunFailed):
    """Another driver has the run now."""

    def __init__(self) -> None:
        super().__init__("another `ravnest run --resume` has taken this run over, and goes on with it")


class RunStore:
    """The file of one run, for the driver of one term."""

    def __init__(self, path: Path, term: int) -> None:
        self._path = path
        self._term = term
        self._plan: Plan | None = None
        self._known: frozenset[str] | None = None
        """The nodes of the plan when the session began."""

    def save(self, state: DriverState, plan: Plan) -> None:
        """Write the state, and the plan where it has changed. Raises OSError as the disk does, and TakenOver."""
        if self.is_anothers:
            raise TakenOver
        if plan is not self._plan:
            self._known = frozenset(plan.fleet.names) if self._known is None else self._known
            try:
                save_plan(plan, plan_beside(self._path))
                last = plan_of_comers(self._path.parent, state.plan)
                if set(plan.fleet.names) - self._known or last.is_file():
                    save_plan(plan, last)
            except InvalidInput as error:
                raise OSError(str(error)) from None
            self._plan = plan
        written = self._path.with_name(self._path.name + ".new")
        file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(msgspec.json.encode(state))
                out.flush()
                os.fsync(out.fileno())
            written.replace(self._path)
        except OSError:
            with suppress(OSError):
                written.unlink()
            raise

    def claim(self, state: DriverState, plan: Plan) -> None:
        """Take the run of another driver, whose state this is. Raises InvalidInput where the disk refuses that."""
        try:
            self.save(msgspec.structs.replace(state, term=self._term), plan)
        except OSError as error:
            raise InvalidInput(f"cannot be written ({error.strerror or error})", path=str(self._path)) from None

    @property
    def is_anothers(self) -> bool:
        """Whether another driver has taken the run over."""
        try:
            found = load_state(self._path)
        except InvalidInput:
            return False
        return found is not None and found.term > self._term

    def remove(self) -> None:
        """The session has ended, and there is nothing to take over. What another driver wrote stays."""
        if not self.is_anothers:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
                plan_beside(self._path).unlink(missing_ok=True)
                for taken in self._path.parent.glob(f"{self._path.stem}.term-*"):
                    taken.unlink(missing_ok=True)


def free_term(path: Path, before: int) -> int:
    """A term that no other driver has, later than the one `before`, of the run whose driver's state is in `path`.

    Of two that take a run over at once each gets its own, and the later one has the run. A file for each says that it
    is taken. Raises InvalidInput where the disk refuses it.
    """
    term = before + 1
    while True:
        try:
            os.close(os.open(path.with_suffix(f".term-{term}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            term += 1
        except OSError as error:
            raise InvalidInput(f"cannot be written ({error.strerror or error})", path=str(path)) from None
        else:
            return term


def plan_beside(path: Path) -> Path:
    """The file with the plan as it is now, of the run whose driver's state is in `path`."""
    return path.with_suffix(".plan.yaml")


def load_plan_beside(path: Path) -> Plan:
    """The plan as the driver had it last whose state is in `path`. Raises InvalidInput."""
    return load_plan(plan_beside(path), changed=True)


def came_since(path: Path) -> Collection[str]:
    """The nodes of the run whose driver's state is in `path`, with those that have come since it began; none where no
    driver has written them down, or nobody can read them."""
    try:
        return load_plan_beside(path).fleet.names
    except InvalidInput:
        return ()


def plan_of_comers(folder: Path, plan: str) -> Path:
    """The file in a run's folder with the plan as it was last, of a run to which nodes have come. It stays when the run
    has ended. `plan`: the SHA-256 of the plan that the run was begun with."""
    return folder / COMERS.replace("*", plan[:16])


def plan_with_comers(folder: Path, plan: Plan, plan_path: Path, alive: Callable[[Plan], Collection[str]]) -> Plan:
    """The plan of a run, read from `plan_path`, with the nodes and clusters that had come to it. Those are left out
    that cannot be read.

    `alive` says which nodes of a plan are there. Raises InvalidInput where `plan_path` cannot be read.
    """
    last = plan_of_comers(folder, plan_sum(plan_path))
    if not last.is_file():
        return plan
    try:
        found = load_plan(last, changed=True)
        return with_comers(plan, found, alive(found))
    except InvalidInput:
        return plan


def load_state(path: Path) -> DriverState | None:
    """What the last driver of a run knew; None where there is no such file.

    Raises InvalidInput for a file that cannot be read or is none of this version.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"cannot be read ({error.strerror or error})", path=str(path)) from None
    try:
        state = msgspec.json.decode(text, type=DriverState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"is no state of a run's driver: {error}", path=str(path)) from None
    if state.version != VERSION:
        raise InvalidInput(f"is of version {state.version}, expected {VERSION}", path=str(path), key="version")
    return state


class Remembering:
    """Writes the state when it is asked to, and says once that the disk refuses it."""

    def __init__(
        self,
        store: RunStore,
        make: Callable[[], DriverState],
        plan: Callable[[], Plan],
        tell: Callable[[str], None],
    ) -> None:
        """`make` and `plan` give the state and the plan as they are now; `tell` is told, as one sentence."""
        self._store = store
        self._make = make
        self._plan = plan
        self._tell = tell
        self._refused = False

    def __call__(self) -> None:
        """Raises TakenOver where another driver has the run now."""
        try:
            self._store.save(self._make(), self._plan())
        except OSError as error:
            if not self._refused:
                why = error.strerror or error
                self._tell(f"driver.json cannot be written ({why}): meanwhile nobody could take the run over as it is")
            self._refused = True
        else:
            self._refused = False


def addresses_in(state: DriverState) -> dict[str, StageAddress]:
    """Where the stages listen that a driver has written down."""
    return {
        stage: StageAddress(
            PeerAddress(at.host, at.pipeline_port, at.bulk_port), at.machine, at.pid, 1, began_s=at.began_s
        )
        for stage, at in state.stages.items()
    }


def plan_sum(path: Path) -> str:
    """The SHA-256 of a plan's file. Raises InvalidInput where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidInput(f"cannot be read ({error.strerror or error})", path=str(path)) from None
