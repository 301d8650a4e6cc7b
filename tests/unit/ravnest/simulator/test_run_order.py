"""The planner's walk of a pipeline copies the order in which a stage works; here the stage machine itself is the judge.

`cluster_planner.predict.schedule_walk` may not import the stage machine (packages below do not know those above), so
random pipelines hold the two together: the same stages and links, once walked and once run under the virtual clock.
"""

import random

import pytest

from cluster_planner import Schedule, Workload
from cluster_planner.predict.schedule_walk import Hop, PassTimes, Uplink, update_s, walked_s
from ravnest.simulator.fleet import VirtualCluster, VirtualFleet, VirtualStage
from ravnest.simulator.run import VirtualRun
from ring_allreduce.transport.emulation.links import LinkShape

BYTES_PER_S = 1e9


def random_pipeline(chance: random.Random) -> tuple[list[PassTimes], list[Hop]]:
    """Two to four stages; passes of 10 to 50 ms; messages and latencies from nothing to about a pass."""
    count = chance.randint(2, 4)
    forwards = [chance.uniform(0.01, 0.05) for _ in range(count)]
    stages = [PassTimes(each, chance.uniform(1.5, 2.5) * each, chance.uniform(0.0, 0.02)) for each in forwards]
    hops = [
        Hop(*(chance.choice((0.0, 0.004, 0.02)) for _ in "ab"), chance.choice((0.0, 0.01, 0.1)))
        for _ in range(count - 1)
    ]
    return stages, hops


def update_ends_s(work: Workload, window: int, stages: list[PassTimes], hops: list[Hop], updates: int) -> list[float]:
    """When the stage machine of the first stage has made each of its updates, under the virtual clock."""
    last = len(stages) - 1
    virtual = tuple(
        VirtualStage(
            forward_s=stage.forward_s,
            backward_s=stage.backward_s,
            update_s=stage.step_s,
            activation_bytes=round(hops[index].forward_s * BYTES_PER_S) if index < last else 0,
            gradient_bytes=round(hops[index - 1].gradient_s * BYTES_PER_S) if index else 0,
        )
        for index, stage in enumerate(stages)
    )
    cluster = VirtualCluster("c0", window, virtual)
    names = cluster.stage_names()
    links = {}
    for index, hop in enumerate(hops):
        shape = LinkShape(bytes_per_s=BYTES_PER_S, latency_s=hop.latency_s)
        links[names[index], names[index + 1]] = links[names[index + 1], names[index]] = shape
    fleet = VirtualFleet(
        clusters=(cluster,),
        update_every=work.update_every,
        max_staleness=work.max_staleness,
        schedule=work.schedule,
        links=links,
    )
    result = VirtualRun(fleet).run(stop_samples=updates * work.update_every)
    steps = [each for each in result.trace if each.who == names[0] and each.instruction.startswith("U")]
    return [each.end_s for each in steps if each.kind == "compute"]


def workload(schedule: Schedule, update_every: int, max_staleness: int) -> Workload:
    return Workload(
        micro_batch=1,
        update_every=update_every,
        max_staleness=max_staleness,
        average_every=1,
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=0.0,
        process_bytes=0,
        schedule=schedule,
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_an_update_of_a_synchronous_schedule_takes_what_the_planner_walks(schedule: Schedule, seed: int) -> None:
    chance = random.Random(seed)
    stages, hops = random_pipeline(chance)
    work = workload(schedule, chance.randint(1, 6), 0)
    ends_s = update_ends_s(work, work.held(len(stages), 0), stages, hops, 6)
    assert ends_s[5] - ends_s[4] == pytest.approx(update_s(work, stages, hops), rel=1e-6)


@pytest.mark.parametrize("seed", range(24))
def test_an_asynchronous_pipeline_is_as_fast_as_the_planner_walks(seed: int) -> None:
    chance = random.Random(seed)
    stages, hops = random_pipeline(chance)
    work = workload("async", chance.randint(1, 5), chance.randint(0, 2))
    window = chance.randint(1, work.largest_window)
    uplinks = [Uplink((False, str(index))) for index in range(len(stages))]
    walked = walked_s(work, window, tuple(stages), tuple(hops), tuple(uplinks))
    ends_s = update_ends_s(work, window, stages, hops, 60)
    measured = (ends_s[59] - ends_s[29]) / (30 * work.update_every)
    assert measured == pytest.approx(walked, rel=0.01)
