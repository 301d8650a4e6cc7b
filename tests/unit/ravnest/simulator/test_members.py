"""A stage that joins a simulated run: what it follows, when it holds the anchor, and when it trains."""

from dataclasses import replace

from ravnest.pipeline import events as ev
from ravnest.simulator.fleet import INSTANT, VirtualCluster, VirtualFleet, VirtualRing, VirtualStage
from ravnest.simulator.run import VirtualRun

STAGE = VirtualStage(forward_s=0.01, backward_s=0.02)
RING = VirtualRing(("c0.s0", "c1.s0"), 1000, 1000, 4.0, direct=True)


def fleet_of(*names: str) -> VirtualFleet:
    """Clusters of one stage each, which average every 20 samples. It knows no other stage than theirs."""
    members = tuple(f"{name}.s0" for name in names)

    def divide_again(ring: VirtualRing, of: tuple[str, ...]) -> VirtualRing:
        assert set(of) <= set(members)
        return replace(ring, members=of)

    return VirtualFleet(
        clusters=tuple(VirtualCluster(name, 1, (STAGE,)) for name in names),
        update_every=1,
        max_staleness=1,
        rings=(replace(RING, members=members),),
        average_every=20,
        default_link=INSTANT,
        control_latency_s=0.001,
        divide_again=divide_again,
    )


def run_of_two() -> VirtualRun:
    """Two clusters of one stage each, which average every 20 samples."""
    return VirtualRun(fleet_of("c0", "c1"))


def test_a_cluster_follows_without_weight_until_it_holds_the_anchor_and_then_trains() -> None:
    run, trains_s = run_of_two(), []
    run.rounds.on_trains = lambda cluster: trains_s.append((cluster, run.clock.now_s))
    doing = [(1.0, lambda _: run.lose("c1.s0", "gone"), None), (2.0, lambda _: run.join("c1"), None)]
    result = run.run(stop_s=4.0, doing=doing)
    [(cluster, at_s)] = trains_s
    assert cluster == "c1"
    assert 2.0 < at_s < 3.0  # the next commit: 20 samples of one cluster take 0.6 s
    [before, after] = run.incarnations("c1.s0")
    assert before.dead
    assert not after.dead
    assert after.machine.version == run.samples["c1"]
    began = [event for event in result.trace if event.who == "c1.s0" and 1.0 < event.start_s < at_s]
    assert all(event.instruction.startswith("chunk:") for event in began)
    assert run.rounds.averaged == run.samples


def test_what_comes_before_it_trains_is_kept_in_order() -> None:
    run = run_of_two()
    run.rounds.lose("c1.s0", "gone")
    run.join("c1")
    stage = run.stages["c1.s0"]
    stage.tell(ev.RoundOpened(1))
    assert not stage.machine.started
    stage.begin(ev.Started(version=3))
    assert stage.machine.started
    assert stage.machine.version == 3


def test_a_newcomer_that_the_run_does_not_wait_for_leaves_at_its_end() -> None:
    run = run_of_two()
    doing = [(1.0, lambda _: run.lose("c1.s0", "gone"), None), (1.9995, lambda _: run.join("c1"), None)]
    run.run(stop_s=2.0, doing=doing)
    assert run.stages["c1.s0"].dead
    assert run.rounds.following == []
    assert run.rounds.averaged["c1"] == run.samples["c1"]


def test_an_epoch_that_is_heard_of_late_has_the_rings_that_it_began_with() -> None:
    """c2 joins, c1 is lost and c3 joins in one moment: who hears of c2 then is in a fleet that has no c1."""
    run = VirtualRun(fleet_of("c0", "c1", "c2", "c3"))
    doing = [(1.0, lambda _, who=who: run.lose(who, "gone"), None) for who in ("c2.s0", "c3.s0")]
    doing += [
        (2.0, lambda _: run.join("c2", fleet_of("c0", "c1", "c2")), None),
        (2.0, lambda _: run.lose("c1.s0", "gone"), None),
        (2.0, lambda _: run.join("c3", fleet_of("c0", "c2", "c3")), None),
    ]
    run.run(stop_s=4.0, doing=doing)
    assert run.rounds.training == ["c0", "c2", "c3"]
    assert run.rounds.averaged == run.samples


def test_a_cluster_that_leaves_lets_another_one_leave_with_it() -> None:
    """Both have handed on what they have made: that one is out lets the next go before the owner has answered."""
    run, left = VirtualRun(fleet_of("c0", "c1", "c2")), list[str]()

    def leave(cluster: str) -> None:
        run.leave(cluster, "its hours end")

    def lose(who: str, reason: str) -> None:
        left.append(who)
        run.lose(who, reason)

    run.rounds.on_left = lose
    run.run(stop_s=6.0, doing=[(1.0, leave, "c0"), (1.0, leave, "c1")])
    assert left == ["c0.s0", "c1.s0"]
    assert list(run.rounds.clusters) == ["c2"]
