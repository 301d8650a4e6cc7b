"""The virtual clock against closed formulas, and traces that show the schedules."""

import pytest

from ravnest.errors import RunFailed
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualRing, VirtualStage
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.trace import VirtualResult
from ring_allreduce.transport import LinkShape

EVEN = VirtualStage(forward_s=1.0, backward_s=2.0)
FAST = VirtualStage(forward_s=0.01, backward_s=0.02, update_s=0.005)
SLOW = VirtualStage(forward_s=0.02, backward_s=0.04, update_s=0.005)
SLOW_PERIOD_S = 0.02 + 0.04 + 0.005 / 16  # of one micro-batch, with 16 of them an update


def pipeline(*stages: VirtualStage, window: int = 32, latency_s: float = 0.0, **rest: object) -> VirtualFleet:
    values: dict[str, object] = {"update_every": 16, "max_staleness": 1, **rest}
    return VirtualFleet(
        clusters=(VirtualCluster("c0", window, stages),),
        default_link=LinkShape(bytes_per_s=1e9, latency_s=latency_s),
        **values,  # type: ignore[arg-type]
    )


def pretty(result: VirtualResult, who: str) -> str:
    """A stage's computations only."""
    return " ".join(e.instruction for e in result.trace if e.who == who and e.kind == "compute")


def test_synchronous_training_flushes_at_each_update() -> None:
    fleet = pipeline(EVEN, EVEN, EVEN, update_every=3, max_staleness=0)
    result = VirtualRun(fleet).run(stop_samples=1)
    assert result.instructions("c0.s0") == (
        "F0 SA0 F1 SA1 F2 SA2 B0 B1 B2 U0 F3 SA3 F4 SA4 F5 SA5 B3 B4 B5 U1 RD6/2 RR0"
    )
    assert result.instructions("c0.s1") == (
        "F0 SA0 F1 SA1 F2 SA2 B0 SG0 B1 SG1 B2 SG2 U0 F3 SA3 F4 SA4 F5 SA5 B3 SG3 B4 SG4 B5 SG5 U1 RR0"
    )
    assert result.instructions("c0.s2") == ("F0 B0 SG0 F1 B1 SG1 F2 B2 SG2 U0 F3 B3 SG3 F4 B4 SG4 F5 B5 SG5 U1 RR0")
    assert result.fleet_staleness() == {0: 18}


def test_asynchronous_steady_state_alternates_without_a_bubble() -> None:
    fleet = pipeline(EVEN, EVEN, EVEN, update_every=3, max_staleness=2, window=6)
    result = VirtualRun(fleet).run(stop_samples=9)
    # Filled, each stage goes one backward, one forward, and does not stop for the update.
    assert pretty(result, "c0.s0").startswith(
        "F0 F1 F2 F3 F4 F5 B0 F6 B1 F7 B2 U0 F8 B3 F9 B4 F10 B5 U1 F11 B6 F12 B7 F13 B8 U2"
    )
    assert pretty(result, "c0.s2").startswith("F0 B0 F1 B1 F2 B2 U0 F3 B3 F4 B4 F5 B5 U1 F6 B6 F7 B7 F8 B8 U2")
    for who in ("c0.s0", "c0.s1", "c0.s2"):
        assert result.busy_share(who, 12.0, result.drain_s) == 1.0


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 4), (4, 16), (8, 16)])
def test_the_bubble_of_synchronous_training_is_the_formula(stages: int, micro_batches: int) -> None:
    fleet = pipeline(*[EVEN] * stages, update_every=micro_batches, max_staleness=0)
    result = VirtualRun(fleet).run(stop_samples=10 * micro_batches)
    bubble = 1 - result.busy_share("c0.s0", 0.0, result.drain_s)
    assert bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1), rel=1e-9)


@pytest.mark.parametrize("latency_s", [0.0, 0.02, 0.1])
def test_the_bottleneck_never_idles_and_sets_the_rate_at_any_latency(latency_s: float) -> None:
    result = VirtualRun(pipeline(FAST, SLOW, FAST, FAST, latency_s=latency_s)).run(stop_samples=1600)
    assert result.busy_share("c0.s1", 5.0, result.drain_s) >= 0.97
    assert result.samples_per_s(5.0, result.drain_s) == pytest.approx(1 / SLOW_PERIOD_S, rel=0.02)
    assert max(result.fleet_staleness()) == 1


def test_a_window_too_small_for_the_round_trip_limits_the_rate() -> None:
    # Out and back over one link of 0.5 s; two micro-batches per round trip.
    stage = VirtualStage(forward_s=0.01, backward_s=0.02)
    result = VirtualRun(pipeline(stage, stage, window=2, latency_s=0.5)).run(stop_samples=320)
    round_trip_s = 2 * 0.5 + 2 * (0.01 + 0.02)
    assert result.samples_per_s(10.0, result.drain_s) == pytest.approx(2 / round_trip_s, rel=0.03)
    assert result.seconds["c0.s0"]["window"] > 0.9 * result.drain_s


def test_a_slow_link_is_the_bottleneck() -> None:
    stage = VirtualStage(forward_s=0.01, backward_s=0.02, activation_bytes=100_000, gradient_bytes=100_000)
    fleet = VirtualFleet(
        clusters=(VirtualCluster("c0", 32, (stage, stage)),),
        update_every=16,
        max_staleness=1,
        micro_batch=8,
        links={("c0.s0", "c0.s1"): LinkShape(bytes_per_s=1e6, latency_s=0.05)},
    )
    result = VirtualRun(fleet).run(stop_samples=8 * 800)
    assert result.samples_per_s(10.0, result.drain_s, "c0") == pytest.approx(8 / 0.1, rel=0.02)


def two_clusters(**rest: object) -> VirtualFleet:
    values: dict[str, object] = {"average_every": 64, "max_lag": 1, **rest}
    return VirtualFleet(
        clusters=(VirtualCluster("c0", 16, (FAST, SLOW, FAST)), VirtualCluster("c1", 16, (SLOW, FAST))),
        rings=(
            VirtualRing(("c0.s0", "c1.s0"), elements=10_000, chunk_elements=1000, element_bytes=4),
            VirtualRing(("c1.s0", "c0.s1"), elements=5_000, chunk_elements=1000, element_bytes=4),
            VirtualRing(("c0.s1", "c1.s1"), elements=5_000, chunk_elements=1000, element_bytes=4),
            VirtualRing(("c0.s2", "c1.s1"), elements=10_000, chunk_elements=1000, element_bytes=4),
        ),
        update_every=4,
        max_staleness=1,
        default_link=LinkShape(bytes_per_s=1e6, latency_s=0.02),
        control_latency_s=0.01,
        clip=True,
        **values,  # type: ignore[arg-type]
    )


def rounds_of(result: VirtualResult, who: str, word: str) -> list[int]:
    return [
        int(e.instruction.removeprefix(word))
        for e in result.trace
        if e.who == who and e.kind == "compute" and e.instruction.removeprefix(word).isdigit()
        if e.instruction.startswith(word)
    ]


def test_two_clusters_average_all_rounds_in_order_and_end() -> None:
    result = VirtualRun(two_clusters()).run(stop_samples=640)
    who = ("c0.s0", "c0.s1", "c0.s2", "c1.s0", "c1.s1")
    last = rounds_of(result, "c0.s0", "M")[-1]
    assert last >= 10
    for stage in who:
        assert rounds_of(result, stage, "SNAP") == rounds_of(result, stage, "M") == list(range(1, last + 1))
    assert {sum(result.seconds[stage].values()) > 0 for stage in who} == {True}
    assert max(result.fleet_staleness()) <= 1


def test_averaging_in_the_background_does_not_slow_training() -> None:
    lone = VirtualRun(two_clusters(average_every=10**9)).run(stop_samples=1280)
    averaging = VirtualRun(two_clusters()).run(stop_samples=1280)
    assert averaging.samples_per_s(2.0, averaging.drain_s) == pytest.approx(
        lone.samples_per_s(2.0, lone.drain_s), rel=0.03
    )


def test_at_the_limit_of_the_lag_a_cluster_waits() -> None:
    slow_links = LinkShape(bytes_per_s=1e4, latency_s=0.02)
    names = [("c0.s0", "c1.s0"), ("c1.s0", "c0.s0"), ("c1.s0", "c0.s1"), ("c0.s1", "c1.s0")]
    fleet = two_clusters(links=dict.fromkeys(names, slow_links))
    result = VirtualRun(fleet).run(stop_samples=1280)
    assert result.seconds["c0.s0"]["lag"] > 0
    free = VirtualRun(two_clusters()).run(stop_samples=1280)
    assert result.samples_per_s(2.0, result.drain_s) < 0.9 * free.samples_per_s(2.0, free.drain_s)


def test_a_run_is_deterministic() -> None:
    assert VirtualRun(two_clusters()).run(320) == VirtualRun(two_clusters()).run(320)


def test_a_run_that_can_never_reach_its_end_says_so() -> None:
    run = VirtualRun(two_clusters())
    run.rounds.drained = lambda told: None  # type: ignore[method-assign] # a driver that forgets
    with pytest.raises(RunFailed, match=r"the end is not reached: c0\.s0 at update"):
        run.run(64)
