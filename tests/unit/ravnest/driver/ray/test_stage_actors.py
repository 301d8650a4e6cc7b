"""Stages as Ray's actors, with stand-ins for Ray and for the process of a stage."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster_planner import Plan
from ravnest.driver.ray import stage_actors
from ravnest.driver.ray.session import RayNode
from ravnest.driver.ray.stage_actors import RayCluster, StageActor, StageOutcome
from ravnest.errors import InvalidInput
from ravnest.stage import process
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
    monkeypatch.setattr(stage_actors, "RaySession", lambda address, code: session)
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

    def run(self, peers: Any) -> None:
        if self.error is not None:
            raise self.error


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
    actor = StageActor(next(iter(setups.values())), "127.0.0.1")
    assert actor.prepare().samples == (240, 10)
    outcome = actor.run({})
    assert outcome.error == said
    assert outcome == StageOutcome() or (outcome.details or "").startswith("Traceback")
