"""Stages as Ray's actors, with stand-ins for Ray and for the process of a stage."""

import signal
import threading
from collections.abc import Container
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster_planner import Plan
from ravnest.driver.ray import stage_actors
from ravnest.driver.ray.session import RayNode
from ravnest.driver.ray.stage_actors import RayCluster, StageActor, StageOutcome, notice_on_sigterm
from ravnest.errors import InvalidInput, NodeLost
from ravnest.stage import process
from ravnest.stage.messages import START_DEADLINE_S
from ravnest.stage.orphan import LEAVE_S, Leash
from ring_allreduce.transport import PeerAddress
from tests.support.local import setups_of, tiny_job


def ray_node(name: str, cores: int = 4, alive: bool = True) -> RayNode:
    return RayNode(f"id-{name}", f"192.0.2.{len(name)}", name, cores, name, alive, works=True)


class Session:
    """A session of Ray with these nodes; `local` where Ray was started on this machine."""

    def __init__(self, *nodes: RayNode, local: bool = False) -> None:
        self.ray = SimpleNamespace(remote=lambda actor: actor)
        self.is_local, self.ships_code, self.host = local, False, "192.0.2.99"
        self.listed = list(nodes)

    def nodes(self) -> list[RayNode]:
        return self.listed


def cluster(monkeypatch: pytest.MonkeyPatch, session: Session) -> RayCluster:
    monkeypatch.setattr(stage_actors, "RaySession", lambda address, code, log: session)
    return RayCluster(None if session.is_local else "192.0.2.99:6379")


def test_the_stages_on_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    alone = [ray_node(name, cores=8) for name in ("desk", "laptop", "tower", "tablet")]
    threads = cluster(monkeypatch, Session(*alone)).threads(plan)
    assert threads == {"desk": 8, "laptop": 8, "tower": 8, "tablet": 8}
    made = cluster(monkeypatch, Session(local=True))
    assert made.threads(plan) == dict.fromkeys(threads, max(1, made.cores() // 4))


def test_a_planned_node_that_ray_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    nodes = [ray_node(name, alive=name != "tower") for name in ("desk", "laptop", "tower", "tablet")]
    with pytest.raises(InvalidInput, match=r"no live Ray node is 'tower'") as caught:
        cluster(monkeypatch, Session(*nodes)).threads(plan)
    assert caught.value.key == "nodes.tower.address"


class Process:
    """A stage's process that fails with `error`, where it is to."""

    error: Exception | None = None
    address = PeerAddress("127.0.0.1", 5000, 5001)
    samples = (240, 10)

    def __init__(self, setup: Any, host: str) -> None: ...

    def give_notice(self) -> None: ...

    def run(self, peers: Any) -> None:
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


@pytest.mark.parametrize(
    ("error", "said"),
    [(None, None), (RuntimeError("out of\nmemory"), "out of memory"), (ValueError(), "ValueError")],
)
def test_a_failure_of_a_stage_is_its_outcome_in_one_line(
    error: Exception | None, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "StageProcess", Process)
    monkeypatch.setattr(Process, "error", error)
    setups, _ = setups_of(tiny_job(), parts=(1,))
    leash = Watched()
    actor = StageActor(next(iter(setups.values())), "127.0.0.1", leash=leash)
    assert actor.prepare().samples == (240, 10)
    outcome = actor.run({})
    assert outcome.error == said
    assert outcome == StageOutcome() or (outcome.details or "").startswith("Traceback")
    # Ray may not hear that nobody wants the process any more: it ends by itself before it runs, and after.
    assert leash.lengths == [START_DEADLINE_S, START_DEADLINE_S, None, LEAVE_S]


class Starting:
    """Stands in for Ray while stages start: each wait takes a second, and sometimes an hour in which all stood still.

    After `ready_after` waits every stage is ready; None: never.
    """

    def __init__(self, ready_after: int | None, pauses: Container[int] = ()) -> None:
        self.ready_after, self.pauses = ready_after, pauses
        self.waits, self.clock_s = 0, 0.0
        self.kill = self.get = lambda call: call
        self.exceptions = SimpleNamespace(RayTaskError=ValueError, RayActorError=OSError)

    def remote(self, actor: object) -> Any:
        ready = SimpleNamespace(remote=lambda *_: object())
        made = SimpleNamespace(prepare=ready)
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: made))

    def wait(self, calls: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(calls)
        self.waits += 1
        self.clock_s += 3600.0 if self.waits in self.pauses else timeout
        ready = self.ready_after is not None and self.waits >= self.ready_after
        return (calls, []) if ready else ([], calls)


def starting(monkeypatch: pytest.MonkeyPatch, ray: Starting) -> RayCluster:
    session = Session(local=True)
    session.ray = cast("Any", ray)
    setups, plan = setups_of(tiny_job(), parts=(1,))
    made = cluster(monkeypatch, session)
    made.place(plan, setups, {})
    return made


def test_a_pause_while_stages_start_does_not_make_them_late(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Starting(ready_after=60, pauses={5, 30})
    assert list(starting(monkeypatch, ray).prepare(START_DEADLINE_S, lambda: ray.clock_s)) == ["c0.s0"]


def test_stages_that_are_not_ready_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Starting(ready_after=None, pauses={5})
    with pytest.raises(NodeLost, match=r"not ready after 180 s: c0\.s0"):
        starting(monkeypatch, ray).prepare(START_DEADLINE_S, lambda: ray.clock_s)
    assert ray.clock_s < 3600.0 + 2 * START_DEADLINE_S


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


class Calls:
    """Stands in for Ray while stages begin anew: `outcomes` has what each call of a stage has come to by now."""

    class RayError(Exception):
        """The base of Ray's errors."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}
        self.killed: list[str] = []
        self.exceptions = SimpleNamespace(RayError=self.RayError)

    def remote(self, actor: object) -> Any:
        def made(setup: Any, *_: object) -> Any:
            def call(kind: str) -> Any:
                return SimpleNamespace(remote=lambda *_: f"{setup.name} {kind}")

            return SimpleNamespace(name=setup.name, prepare=call("prepare"), run=call("run"))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=made))

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.name)

    def wait(self, calls: list[str], **_: object) -> tuple[list[str], list[str]]:
        return [call for call in calls if call in self.outcomes], []

    def get(self, call: str) -> Any:
        outcome = self.outcomes[call]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_stages_that_begin_anew_are_told_of_once_and_their_old_processes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session)
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    nodes = {name: plan.cluster(each.cluster).stages[each.index].node for name, each in setups.items()}
    made.place(plan, setups, nodes)
    made.start({})
    lost = {name: setup for name, setup in setups.items() if setup.cluster == "c0"}
    assert made.alive(plan) == {node.name for node in plan.fleet.nodes}
    made.begin(plan, lost)
    assert ray.killed == ["c0.s0", "c0.s1"]
    ray.outcomes = {"c0.s0 run": StageOutcome(), "c0.s0 prepare": "an address", "c0.s1 prepare": Calls.RayError("torn")}
    assert made.ended() == [], "the process that was lost is nobody's any more"
    assert made.prepared(["c0.s0", "c0.s1"]) == {"c0.s0": "an address", "c0.s1": "torn"}
    assert made.prepared(["c0.s0", "c0.s1"]) == {}
    made.enter({}, ["c0.s0"])
    assert [end.stage for end in made.ended()] == ["c0.s0"]
    made.end(["c0.s0", "c0.s1"])
    assert ray.killed == ["c0.s0", "c0.s1"] * 2
