"""Stages as Ray's actors, with stand-ins for Ray and for the process of a stage."""

from collections.abc import Callable, Collection, Container, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster_planner import Plan
from ravnest.driver.ray import stage_actors
from ravnest.driver.ray.session import RayNode
from ravnest.driver.ray.stage_actors import SAYS_HOW_S, RayCluster
from ravnest.errors import NodeLost
from ravnest.stage.line import IS_READY
from ravnest.stage.messages import START_DEADLINE_S
from ravnest.stage.own_process import StageOutcome, process_space, told
from ravnest.stage.setup import StageAddress, StageSetup
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


def cluster(
    monkeypatch: pytest.MonkeyPatch,
    session: Session,
    now: Callable[[], float] = lambda: 0.0,
    beside: Callable[[Plan], Collection[str]] = lambda plan: (),
) -> RayCluster:
    monkeypatch.setattr(stage_actors, "RaySession", lambda address, code, log: session)
    monkeypatch.setattr(stage_actors, "HeadWatch", lambda address: SimpleNamespace(take=lambda: ["it is silent"]))
    return RayCluster(None if session.is_local else "192.0.2.99:6379", now=now, beside=beside)


def nodes_of(plan: Plan, setups: Mapping[str, StageSetup]) -> dict[str, str]:
    return {name: plan.cluster(each.cluster).stages[each.index].node for name, each in setups.items()}


def test_the_stages_on_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    alone = [ray_node(name, cores=8) for name in ("desk", "laptop", "tower", "tablet")]
    threads = cluster(monkeypatch, Session(*alone)).threads(plan)
    assert threads == {"desk": 8, "laptop": 8, "tower": 8, "tablet": 8}
    made = cluster(monkeypatch, Session(local=True))
    assert made.threads(plan) == dict.fromkeys(threads, max(1, made.cores() // 4))


def test_a_head_is_watched_where_it_is_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster(monkeypatch, Session()).news() == ["it is silent"]
    assert cluster(monkeypatch, Session(local=True)).news() == []


def test_the_nodes_of_the_plan_are_told_that_ray_drains(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    session = Session(*map(ray_node, ("desk", "laptop", "tower")))
    session.draining = lambda: [ray_node("laptop"), ray_node("somebody's")]  # type: ignore[attr-defined]
    assert cluster(monkeypatch, session).draining(plan) == {"laptop"}
    assert cluster(monkeypatch, Session(local=True)).draining(plan) == set()


AT = StageAddress(PeerAddress("127.0.0.1", 5000, 5001), "here", 1, 2)


class Starting:
    """Stands in for Ray while stages start: each wait takes a second, and sometimes an hour in which all stood still.

    After `ready_after` waits every stage is ready; None: never.
    """

    def __init__(self, ready_after: int | None, pauses: Container[int] = ()) -> None:
        self.ready_after, self.pauses = ready_after, pauses
        self.waits, self.clock_s = 0, 0.0
        self.kill = lambda actor: actor
        self.get = lambda call: ("said", told(AT))
        self.exceptions = SimpleNamespace(RayError=OSError, OutOfMemoryError=MemoryError)

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
    made.place(plan, setups, nodes_of(plan, setups))
    return made


def test_a_pause_while_stages_start_does_not_make_them_late(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Starting(ready_after=60, pauses={5, 30})
    assert list(starting(monkeypatch, ray).prepare(START_DEADLINE_S, lambda: ray.clock_s)) == ["c0.s0"]


def test_stages_that_are_not_ready_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Starting(ready_after=None, pauses={5})
    with pytest.raises(NodeLost, match=r"not ready after 180 s: c0\.s0"):
        starting(monkeypatch, ray).prepare(START_DEADLINE_S, lambda: ray.clock_s)
    assert ray.clock_s < 3600.0 + 2 * START_DEADLINE_S


class Calls:
    """Stands in for Ray while stages begin anew: `outcomes` has what each call of a stage has come to by now."""

    class RayError(Exception):
        """The base of Ray's errors."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}
        self.ended: list[str] = []
        self.exceptions = SimpleNamespace(RayError=self.RayError, OutOfMemoryError=MemoryError)

    def remote(self, actor: object) -> Any:
        def made(stage: str, order: bytes) -> Any:

            def call(kind: str) -> Any:
                return SimpleNamespace(remote=lambda *_: f"{stage} {kind}")

            def end() -> str:
                self.ended.append(stage)
                return f"{stage} end {len(self.ended)}"

            end_call = SimpleNamespace(remote=end)

            def again(name: str, order: bytes) -> str:
                return f"{name} again"

            calls = {kind: call(kind) for kind in ("prepare", "run", "make_ready", "rest")}
            return SimpleNamespace(name=stage, **calls, again=SimpleNamespace(remote=again), end=end_call)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=made))

    def kill(self, actor: Any) -> None: ...

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
    made.place(plan, setups, nodes_of(plan, setups))
    made.start({})
    lost = {name: setup for name, setup in setups.items() if setup.cluster == "c0"}
    assert made.alive(plan) == {node.name for node in plan.fleet.nodes}
    made.begin(plan, lost)
    assert ray.ended == ["c0.s0", "c0.s1"]
    ray.outcomes = {
        "c0.s0 run": ("said", told(StageOutcome())),
        "c0.s0 prepare": ("said", told(AT)),
        "c0.s1 prepare": Calls.RayError("torn"),
    }
    assert made.ended() == [], "the process that was lost is nobody's any more"
    assert made.prepared(["c0.s0", "c0.s1"]) == {"c0.s0": AT, "c0.s1": "torn"}
    assert made.prepared(["c0.s0", "c0.s1"]) == {}
    made.enter({}, ["c0.s0"])
    assert [(end.stage, end.outcome) for end in made.ended()] == [("c0.s0", StageOutcome())]
    made.end(["c0.s0", "c0.s1"])
    assert ray.ended == ["c0.s0", "c0.s1"] * 2


def test_a_ready_process_takes_the_place_of_one_that_died_beside_its_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session, beside=lambda plan: {"c0.s0", "c0.s1"})
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made.place(plan, setups, nodes_of(plan, setups))
    made.start({})
    ray.outcomes = {"c0.s0 make_ready": ("said", IS_READY), "c0.s1 make_ready": ("said", IS_READY)}
    assert made.ended() == []
    ray.outcomes |= {"c0.s0 run": ("died", "killed"), "c0.s1 run": Calls.RayError("gone")}
    assert [end.stage for end in made.ended()] == ["c0.s0", "c0.s1"]
    assert made.ready == {"c0.s0"}, "the other's actor is gone, and its ready process with it"
    ray.outcomes = {"c0.s0 again": ("said", told(AT)), "c0.s1 prepare": ("said", told(AT))}
    made.begin(plan, {name: setups[name] for name in ("c0.s0", "c0.s1")})
    assert (ray.ended, made.ready) == (["c0.s1"], set())
    assert made.prepared(["c0.s0", "c0.s1"]) == {"c0.s0": AT, "c0.s1": AT}


def test_other_cuts_take_the_ready_processes_on_their_nodes_whatever_stage_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session, beside=lambda plan: {"c0.s0", "c0.s1", "c1.s0"})
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made.place(plan, setups, nodes := nodes_of(plan, setups))
    made.start({})
    ray.outcomes = {f"{stage} make_ready": ("said", IS_READY) for stage in setups}
    assert made.ended() == []
    assert made.ready_nodes == set(nodes.values())
    made.end(["c0.s0", "c0.s1"])
    assert (ray.ended, made.ready_nodes) == ([], set(nodes.values())), "their actors rest"
    made.begin_spares(plan, {"c0.s0": setups["c0.s0"]}, {"c0.s0": nodes["c0.s1"]})
    assert made.ready_nodes == {nodes["c0.s0"], nodes["c1.s0"]}
    ray.outcomes = {"c0.s0 again": ("said", told(AT)), "c0.s0 run": ("died", "it was ended")}
    assert made.prepared(["c0.s0"]) == {"c0.s0": AT}
    assert made.ended() == [], "the stage that was there before is nobody's any more"


def where_one_waits(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, setups: Mapping[str, StageSetup]
) -> tuple[RayCluster, Session, Calls]:
    """A cluster with its session and its calls: all stages are at work, and a process waits beside c0.s0."""
    session, ray = Session(*(ray_node(node.name) for node in plan.fleet.nodes)), Calls()
    session.ray = ray  # type: ignore[assignment]
    session.on_node = lambda node: {}  # type: ignore[attr-defined]
    made = cluster(monkeypatch, session, beside=lambda plan: {"c0.s0"})
    made.place(plan, setups, nodes_of(plan, setups))
    made.start({})
    ray.outcomes = {"c0.s0 make_ready": ("said", IS_READY)}
    assert made.ended() == []
    return made, session, ray


@pytest.mark.parametrize("node_is_there", [True, False])
def test_where_an_actor_that_rested_has_died_a_fresh_one_is_started_in_the_same_try(
    monkeypatch: pytest.MonkeyPatch, node_is_there: bool
) -> None:
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made, session, ray = where_one_waits(monkeypatch, plan, setups)
    made.begin(plan, {"c0.s0": setups["c0.s0"]})
    if not node_is_there:
        session.listed = []
    ray.outcomes = {"c0.s0 again": Calls.RayError("its worker was killed")}
    failed = {} if node_is_there else {"c0.s0": "its worker was killed"}
    assert made.prepared(["c0.s0"]) == failed
    ray.outcomes = {"c0.s0 prepare": ("said", told(AT))}
    assert made.prepared(["c0.s0"]) == ({"c0.s0": AT} if node_is_there else {})
    assert ray.ended == ["c0.s0"], "what may be left of the dead one is to end"


def test_a_node_that_goes_while_stages_begin_costs_no_actor_that_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made, session, ray = where_one_waits(monkeypatch, plan, setups)
    lists = [session.listed, []]
    session.nodes = lambda: lists.pop(0)  # type: ignore[method-assign]
    made.begin(plan, {name: setups[name] for name in ("c0.s0", "c0.s1")})
    assert len(lists) == 1, "Ray is asked once"
    ray.outcomes = {"c0.s0 again": ("said", told(AT)), "c0.s1 prepare": ("said", told(AT))}
    assert made.prepared(["c0.s0", "c0.s1"]) == {"c0.s0": AT, "c0.s1": AT}


def test_after_a_takeover_processes_wait_beside_the_stages_that_were_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session, beside=lambda plan: {"c0.s0", "c1.s0"})
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    nodes = nodes_of(plan, setups)
    made.adopt(dict.fromkeys(setups, AT), setups)
    made.keep_ready(plan, {"attic"}, {nodes["c1.s0"]})
    waiting = {nodes["c0.s0"], "attic"}
    ray.outcomes = {f"ready on {node} make_ready": ("said", IS_READY) for node in (*nodes.values(), "attic")}
    assert made.ended() == []
    assert made.ready_nodes == waiting, "beside c0.s1 is no room, and the machine of c1.s0 is gone"
    made.begin(plan, {"c0.s0": setups["c0.s0"]})
    ray.outcomes = {"c0.s0 again": ("said", told(AT))}
    assert made.prepared(["c0.s0"]) == {"c0.s0": AT}
    made.end(["c1.s0"])
    made.keep_ready(plan, {"attic"}, ())
    assert (made.ended(), made.ready_nodes) == ([], {"attic"}), "c0.s0 has an actor now, and c1.s0 was ended"


def test_processes_wait_where_nothing_runs_until_a_stage_begins_there_or_the_node_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session, beside=lambda plan: {"c0.s0"})
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made.keep_ready(plan, {"attic"}, ())
    assert made.ready_nodes == set(), "no stage was placed yet"
    made.place(plan, setups, nodes := nodes_of(plan, setups))
    made.start({})
    made.keep_ready(plan, {"attic", "barn", nodes["c1.s0"]}, ())
    made.keep_ready(plan, {"attic", "barn"}, ())
    ray.outcomes = {f"ready on {node} make_ready": ("said", IS_READY) for node in ("attic", "barn")}
    assert made.ended() == []
    assert made.ready_nodes == {"attic", "barn"}
    made.begin_spares(plan, {"c0.s1": setups["c0.s1"]}, {"c0.s1": "attic"})
    ray.outcomes = {"c0.s1 again": ("said", told(AT))}
    assert made.prepared(["c0.s1"]) == {"c0.s1": AT}
    assert ray.ended == ["c0.s1"], "that on its old node"
    made.keep_ready(plan, (), {"barn"})
    assert (ray.ended, made.ready_nodes) == (["c0.s1", "ready on barn"], set())


def test_a_stage_that_begins_where_one_is_still_being_made_ready_has_the_memory_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session, beside=lambda plan: {"c0.s0"})
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made.place(plan, setups, nodes_of(plan, setups))
    made.start({})
    made.keep_ready(plan, {"attic", "barn"}, ())
    made.begin_spares(plan, {"c0.s1": setups["c0.s1"]}, {"c0.s1": "attic"})
    assert ray.ended == ["c0.s1", "ready on attic"]
    ray.outcomes = {f"ready on {node} make_ready": ("said", IS_READY) for node in ("attic", "barn")}
    assert (made.ended(), made.ready_nodes) == ([], {"barn"})


def test_what_waits_on_a_machine_is_gone_with_it_where_that_is_acted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session, beside=lambda plan: {"c0.s0", "c0.s1"})
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made.place(plan, setups, nodes := nodes_of(plan, setups))
    made.start({})
    made.keep_ready(plan, {"attic"}, ())
    ray.outcomes = {f"{each} make_ready": ("said", IS_READY) for each in ("c0.s0", "c0.s1", "ready on attic")}
    assert made.ended() == []
    for node in ("attic", nodes["c0.s0"]):
        made.machine_gone(node)
    assert (ray.ended, made.ready_nodes) == (["ready on attic"], {nodes["c0.s1"]})
    ray.outcomes = {"c0.s0 run": ("died", "killed")}
    assert [end.stage for end in made.ended()] == ["c0.s0"]
    assert made.ready == set(), "its actor is there, unlike that of a machine which is gone"


def test_no_process_waits_on_free_nodes_where_none_waits_beside_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session)
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made.place(plan, setups, nodes_of(plan, setups))
    made.keep_ready(plan, {"attic"}, ())
    ray.outcomes = {"ready on attic make_ready": ("said", IS_READY)}
    made.start({})
    assert (made.ended(), made.ready_nodes) == ([], set())


def test_a_process_that_died_is_told_apart_from_one_whose_actor_ray_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session)
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made.place(plan, setups, nodes_of(plan, setups))
    made.start({})
    ray.outcomes = {"c0.s0 run": ("died", "killed"), "c0.s1 run": Calls.RayError("gone"), "c1.s0 run": MemoryError()}
    ends = {end.stage: end for end in made.ended()}
    assert (ends["c0.s0"].reason, ends["c0.s0"].unheard) == ("killed", False)
    assert (ends["c0.s1"].reason, ends["c0.s1"].unheard) == ("gone", True)
    assert "free memory" in ends["c1.s0"].reason
    assert made.ended() == []
    assert made.ends_told == {"c0.s0"}, "of the others' machines nothing is known"
    made.end(["c0.s0"])
    assert made.ends_told == set()


GONE = StageAddress(PeerAddress("127.0.0.1", 5000, 5001), process_space(), 2**30, 2)
"""Of a process of this machine that has ended."""


def test_the_end_of_a_process_here_is_told_where_its_actor_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ray, clock = Session(local=True), Calls(), [0.0]
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session, lambda: clock[0])
    setups, plan = setups_of(tiny_job(), parts=(2, 1))
    made.place(plan, setups, nodes_of(plan, setups))
    ray.outcomes = {f"{stage} prepare": ("said", told(AT if stage == "c1.s0" else GONE)) for stage in setups}
    made.prepare(START_DEADLINE_S)
    made.start({})
    assert made.ended() == [], "their actors may tell more"
    ray.outcomes = {"c0.s1 run": ("said", told(StageOutcome("it failed")))}
    clock[0] = SAYS_HOW_S
    assert [(end.stage, end.outcome, end.reason) for end in made.ended()] == [
        ("c0.s1", StageOutcome("it failed"), ""),
        ("c0.s0", None, "its process has ended"),
    ]
    ray.outcomes = {"c0.s0 run": ("died", "killed")}
    clock[0] = 10.0
    assert made.ended() == [], "each is told once"
    assert made.ends_told == {"c0.s0", "c0.s1"}


def test_a_machine_without_memory_is_named_while_stages_start(monkeypatch: pytest.MonkeyPatch) -> None:
    session, ray = Session(local=True), Calls()
    session.ray = ray  # type: ignore[assignment]
    made = cluster(monkeypatch, session)
    setups, plan = setups_of(tiny_job(), parts=(1,))
    made.place(plan, setups, nodes_of(plan, setups))
    ray.outcomes = {"c0.s0 prepare": MemoryError()}
    with pytest.raises(NodeLost, match=r"c0\.s0 could not start: Ray has ended its actor to free memory.*memory_gb"):
        made.prepare(START_DEADLINE_S)
