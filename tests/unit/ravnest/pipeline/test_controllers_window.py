"""The tuner by example, and in the virtual clock: from any window, at any latency, and when links change."""

import itertools
import math

import pytest

from ravnest.pipeline.controllers import LEAST_SPARE, RoundTrip, WindowTuner, spare_for
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualStage
from ravnest.simulator.run import VirtualRun
from ravnest.simulator.trace import VirtualResult
from ring_allreduce.transport import LinkShape

EVEN = VirtualStage(forward_s=0.02, backward_s=0.04, update_s=0.01)
SLOW = VirtualStage(forward_s=0.03, backward_s=0.06, update_s=0.01)
QUICK = LinkShape(bytes_per_s=1e9, latency_s=0.001)
FAR = LinkShape(bytes_per_s=1e9, latency_s=0.1)


class Feed:
    """Feeds round trips of a pipeline whose window is always full to a tuner."""

    def __init__(self, window: int, largest: int = 64, stages: int = 4) -> None:
        self.tuner = WindowTuner(window, largest, stages)
        self.now_s = 0.0
        self.micro_batch = 0
        self.changes: list[int] = []

    def steady(self, trips: int, bare_s: float, busiest_s: float, link_s: float = 0.0) -> None:
        """`bare_s`: the round trip when nothing waits. `link_s`: what a link takes for a micro-batch."""
        for _ in range(trips):
            window = self.tuner.window
            seconds = max(bare_s, window * busiest_s, window * link_s)
            of_stages_s = max(0.0, seconds - bare_s) if link_s <= busiest_s else 0.0
            self.now_s += seconds / window
            trip = RoundTrip(self.micro_batch, self.now_s, seconds, of_stages_s, busiest_s, window)
            self.micro_batch += 1
            changed = self.tuner.take(trip)
            if changed is not None:
                self.changes.append(changed)


@pytest.mark.parametrize("window", [1, 3, 64])
def test_one_look_is_enough(window: int) -> None:
    feed = Feed(window)
    feed.steady(120, bare_s=1.0, busiest_s=0.1)
    assert feed.changes == [math.ceil(1.05 * 10) + LEAST_SPARE]


@pytest.mark.parametrize(("stages", "spare"), [(2, 2), (4, 2), (8, 4), (32, 16)])
def test_the_longer_the_pipeline_the_more_is_spared(stages: int, spare: int) -> None:
    feed = Feed(1, stages=stages)
    feed.steady(120, bare_s=1.0, busiest_s=0.1)
    assert feed.changes == [math.ceil(1.05 * 10) + spare]


def test_a_window_that_is_nearly_right_stays() -> None:
    for window in (12, 13, 14):
        feed = Feed(window)
        feed.steady(100, bare_s=1.0, busiest_s=0.1)
        assert feed.changes == []


def test_it_never_grows_beyond_what_it_may() -> None:
    feed = Feed(2, largest=8)
    feed.steady(100, bare_s=5.0, busiest_s=0.1)
    assert feed.changes == [8]


def test_a_link_that_is_the_bottleneck_is_found_and_asks_for_no_more() -> None:
    feed = Feed(4)
    feed.steady(100, bare_s=1.0, busiest_s=0.1, link_s=0.2)
    assert feed.tuner.window == math.ceil(1.05 * 1.0 / 0.2) + LEAST_SPARE
    assert feed.tuner.pace_s == pytest.approx(0.2)
    feed.steady(1000, bare_s=1.0, busiest_s=0.1, link_s=0.2)
    # It tries again now and then, ever more rarely, and comes back each time.
    assert len(feed.changes) <= 12
    assert set(feed.changes[1::2]) == {8}


def test_a_link_that_gets_faster_is_noticed() -> None:
    feed = Feed(4)
    feed.steady(100, bare_s=1.0, busiest_s=0.1, link_s=0.2)
    feed.steady(200, bare_s=1.0, busiest_s=0.1, link_s=0.05)
    assert feed.tuner.window == math.ceil(1.05 * 10) + LEAST_SPARE


def run(stages: int, link: LinkShape, window: int, slow: int | None = None, **rest: object) -> VirtualResult:
    """`slow`: which stage, if any, is half as slow again."""
    values: dict[str, object] = {"largest_window": 128, **rest}
    samples = values.pop("samples", 450)
    each = tuple(SLOW if index == slow else EVEN for index in range(stages))
    fleet = VirtualFleet(
        clusters=(VirtualCluster("c0", window, each),),
        update_every=64,
        max_staleness=1,
        default_link=link,
        **values,  # type: ignore[arg-type]
    )
    return VirtualRun(fleet).run(stop_samples=samples)  # type: ignore[arg-type]


def busy(result: VirtualResult, from_s: float, to_s: float) -> float:
    return max(result.busy_share(who, from_s, to_s) for who in result.seconds)


@pytest.mark.parametrize("slow", [None, 1])
@pytest.mark.parametrize("window", [1, 128])
@pytest.mark.parametrize(("stages", "latency_s"), [(4, 0.0), (4, 0.02), (4, 0.1), (8, 0.0), (8, 0.02), (8, 0.1)])
def test_the_bottleneck_is_busy_once_tuned_whatever_the_plan_said(
    stages: int, latency_s: float, window: int, slow: int | None
) -> None:
    result = run(stages, LinkShape(1e9, latency_s), window, slow)
    bare_s = 2 * latency_s * (stages - 1) + 0.06 * stages + (0.0 if slow is None else 0.03)
    (tuned_s, _, tuned), *_ = reversed(result.windows)
    assert len(result.windows) <= 2
    # From the smallest window as from the largest: a few round trips.
    assert tuned_s <= 6 * bare_s + 16 * 0.1
    needed = bare_s / (0.06 if slow is None else 0.09)
    assert needed <= tuned <= math.ceil(1.05 * needed) + spare_for(stages) + 1
    assert busy(result, tuned_s + 2 * bare_s, result.drain_s) >= 0.97


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations([QUICK, FAR])))
@pytest.mark.parametrize("slow", [None, 1])
def test_a_change_of_latency_is_followed(before: LinkShape, after: LinkShape, slow: int | None) -> None:
    result = run(4, before, 6, slow, later_link=(15.0, after), samples=800)
    followed_s = 15.0 + 8 * (0.24 + 6 * max(before.latency_s, after.latency_s))
    assert busy(result, 8.0, 15.0) >= 0.97
    assert busy(result, followed_s, result.drain_s) >= 0.97
    assert len(result.windows) <= 8
    last = result.windows[-1][2]
    assert last <= 8 if after is QUICK else last >= 12


def test_a_link_that_becomes_the_bottleneck_does_not_blow_the_window_up() -> None:
    big = VirtualStage(0.02, 0.04, 0.01, activation_bytes=100_000, gradient_bytes=100_000)
    fleet = VirtualFleet(
        clusters=(VirtualCluster("c0", 8, (big,) * 4),),
        update_every=64,
        max_staleness=1,
        default_link=LinkShape(1e7, 0.02),
        later_link=(10.0, LinkShape(1e6, 0.02)),
        largest_window=128,
    )
    result = VirtualRun(fleet).run(stop_samples=500)
    assert result.samples_per_s(20.0, result.drain_s) == pytest.approx(10.0, rel=0.02)
    assert max(window for _, _, window in result.windows) <= 32


@pytest.mark.parametrize("rest", [{"largest_window": None}, {"schedule": "1f1b", "max_staleness": 0}])
def test_what_is_not_to_be_tuned_is_not(rest: dict[str, object]) -> None:
    each = VirtualCluster("c0", 2, (EVEN,) * 3)
    values: dict[str, object] = {"max_staleness": 1, "largest_window": 64, **rest}
    fleet = VirtualFleet(clusters=(each,), update_every=8, default_link=FAR, **values)  # type: ignore[arg-type]
    assert VirtualRun(fleet).run(stop_samples=64).windows == ()
