"""One session of a run: Ray starts its actors, the weights are sent to them, and the loop runs until they have left.

In: a `Prepared`, and how the run is to go (address, imitation, encryption, limit). Out: a `RunRecord` of what happened
and the `RunControl` that says how far the run came. Stages make the weights that the seed gives themselves. What this
process hands out is what lies in files, and the weights of constructors that cannot be recorded (docs/limits.md).
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from cluster_planner import Plan, shadows_among
from ravnest.driver import control as c
from ravnest.driver.accounts import ResumePosition, RunShape
from ravnest.driver.arrivals import NodeArrivals
from ravnest.driver.checkpoint_collector import CheckpointCollector
from ravnest.driver.cluster_starts import ClusterStarts
from ravnest.driver.departures import NodeDepartures
from ravnest.driver.drain_notices import DrainNotices
from ravnest.driver.imitation import Imitation
from ravnest.driver.loop import DriverLoop
from ravnest.driver.loop_parts import Recovery, StageLinks, goes_on
from ravnest.driver.node_requests import Request, asked
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.driver.observe.record import RunRecord
from ravnest.driver.observe.trace import RunTrace, draw
from ravnest.driver.observe.trackers import Trackers
from ravnest.driver.planning_anew import NodesThere, PlansAnew
from ravnest.driver.preparation import Prepared, check_same_data, hand_out, writer_opener
from ravnest.driver.ray.code_shipping import JobCode, job_code
from ravnest.driver.ray.local_ray import workers
from ravnest.driver.ray.stage_actors import RayCluster
from ravnest.driver.remembering import beginning, changing, state_of
from ravnest.driver.run_rings import RunRings
from ravnest.driver.run_store import DriverState, Remembering
from ravnest.driver.session_keys import kept_keys, possible_stages, run_keys
from ravnest.driver.session_stages import SessionStages, SetupsByPlan, started, taken_over
from ravnest.driver.shut_out import ShutOutFile
from ravnest.driver.signals import PauseTogether, StopOnInterrupt
from ravnest.driver.slow_nodes import SlowNodes
from ravnest.driver.stage_watch import stage_watch
from ravnest.driver.standing import Standing
from ravnest.driver.state_donors import StateDonors
from ravnest.driver.state_handover import StateHandover, joining_states
from ravnest.driver.warm_spares import SpareNeeds, WarmSpares
from ravnest.job.config import Job
from ravnest.job.materials import baselines_of, search_dirs
from ravnest.pipeline import stage_name
from ravnest.recovery import HourWatch, NodesLeft, Replacements, beside, further_clusters
from ravnest.stage import messages as m
from ravnest.stage.messages import START_DEADLINE_S
from ravnest.stage.setup import StageAddress, StageSetup
from ravnest.training.losses import build_metrics
from ravnest.training.sampler import EvaluationBatches
from ring_allreduce.rounds import RoundOwner, RoundsUnderWay
from ring_allreduce.transport import Outbox

_HANDED_OUT_BYTES = 8 << 20
"""How much state may be on its way to one stage, beyond a tensor, or a piece of one that lies in a file."""
_HANDED_OUT_IN_ALL = 64 << 20
"""How much may be on its way to all of them, where each has a piece at most on its way already."""
T = TypeVar("T", int, float)


def train(
    prepared: Prepared,
    address: str | None,
    *,
    imitate: Imitation | None = None,
    encrypt: bool = False,
    timeline: bool = False,
    limit: report.RunLimit = report.NO_LIMIT,
    left: NodesLeft | None = None,
    anew: PlansAnew | None = None,
    observer: report.Observer,
    interrupt: StopOnInterrupt,
) -> tuple[RunRecord, c.RunControl]:
    """Train one session from its start to its last round.

    Arguments:
        prepared: the run, ready to start.
        address: HOST:PORT of a running Ray cluster; None starts Ray on this machine.
        imitate: which of the plan's machines are imitated, and how fast; None imitates nothing.
        encrypt: messages between the processes travel encrypted, with keys of this session.
        timeline: write trace.json, also of a run that fails.
        limit: an end that may come before the job's own.
        left: the nodes that have left the run with notice. It knows afterwards who has left and come back meanwhile.
        anew: lets the session end for a better plan.
        observer: is told of each event.
        interrupt: says whether the user wants the run to end.

    Returns:
        What was recorded, and the control of the run, which knows how far it came.

    Raises:
        RunFailed, NodeLost or InvalidInput.
    """
    plan, job, takes_over = prepared.plan, prepared.job, prepared.takes_over
    trackers = Trackers(job.report_to, search_dirs(plan.job_file), plan.job_file)
    keys = kept_keys(takes_over) if takes_over is not None else None
    if takes_over is None and encrypt:
        keys = run_keys([*possible_stages(plan), m.DRIVER])
    observer.on(report.PhaseEvent("starting Ray", address or "on this machine"))
    elsewhere = [node.data.factory for node in plan.fleet.nodes if node.data is not None and node.data.factory]
    code = None if address is None else job_code(job, plan.job_file, elsewhere)
    if code is not None and code.notice is not None:
        observer.on(report.NoticeEvent(code.notice))
    with (
        _ray(address, code, prepared.folder.ray_log, interrupt, _ready_beside(job, address)) as ray,
        PauseTogether((lambda: [*workers(), *ray.adopted.ids]) if address is None else None),
    ):
        setups_by = SetupsByPlan(prepared, ray, keys, imitate, timeline)
        setups = setups_by(plan)
        if takes_over is None:
            what = f"{len(setups)} processes{', encrypted' if encrypt else ''}"
            observer.on(report.PhaseEvent("placing stages", what))
            begins = started(prepared, ray, setups, _nodes(plan), keys)
        else:
            begins = taken_over(prepared, takes_over, ray, setups, keys, observer)
        with (
            begins as stages,
            MetricsWriter(prepared.folder.metrics, trackers) as writer,
            ThreadPoolExecutor(1, "disk") as disk,
        ):
            end = run_end(job, prepared.total_samples, limit, _speed(imitate))
            record = _record(prepared, observer, writer, setups, end)
            if takes_over is None and (baselines := baselines_of(prepared.data)):
                writer.write("baselines", 0.0, losses=baselines)
            outbox = Outbox(stages.endpoint, _HANDED_OUT_BYTES, _HANDED_OUT_IN_ALL)
            if takes_over is None:
                observer.on(report.PhaseEvent("handing out weights"))
                held = {stage: at.holds for stage, at in stages.places.items()}
                hand_out(outbox, stages.endpoint, setups.values(), stages.states, held=held)
                stages.states.clear()
            control = run_control(
                plan,
                job,
                setups,
                len(prepared.data.held_out),
                prepared.total_samples,
                prepared.start,
                limit,
                speed=_speed(imitate),
                standing=stages.standing,
                stands_by=True,
            )
            trace = RunTrace(_nodes(plan)) if timeline else None
            rings = RunRings(plan, setups, stages.peers)
            loop = DriverLoop(
                StageLinks(stages.endpoint, outbox, ray),
                control,
                stage_watch(plan, _nodes(plan), time.monotonic(), speed=_speed(imitate)),
                rings,
                CheckpointCollector(
                    setups,
                    writer_opener(prepared.folder, lambda: rings.plan, job, prepared.start, prepared.fingerprint),
                    disk,
                    stages.endpoint.wake,
                ),
                record,
                stop_wanted=lambda: interrupt.wanted,
                recovery=_recovery(
                    prepared,
                    address,
                    stages,
                    ray,
                    setups_by,
                    control,
                    rings,
                    record,
                    disk,
                    outbox,
                    left or NodesLeft(),
                    anew,
                ),
                trace=trace,
            )
            interrupt.gracefully = True
            try:
                if stages.standing is not None:
                    loop.go_on(stages.standing, stages.born, stages.early)
                loop.run()
            finally:
                draw(trace, prepared.folder.trace, record)  # of a run that failed, too
    return record, control


def _recovery(
    prepared: Prepared,
    address: str | None,
    stages: SessionStages,
    ray: RayCluster,
    setups_by: SetupsByPlan,
    control: c.RunControl,
    rings: RunRings,
    record: RunRecord,
    disk: Executor,
    outbox: Outbox,
    left: NodesLeft,
    anew: PlansAnew | None,
) -> Recovery:
    """What starts lost clusters anew and lets nodes come and go. In a rehearsal no clock asks, nor does it remember."""
    plan, endpoint, real = prepared.plan, stages.endpoint, setups_by.imitate is None
    donors = StateDonors(rings, endpoint, record.restored, record.notice)
    replacements = Replacements(plan, start_s=START_DEADLINE_S, further=further_clusters(plan), left=left)
    for name in () if stages.standing is None else stages.standing.away:
        replacements.lost(name, 0, time.monotonic())
    if (before := prepared.takes_over) is not None:
        left.take(before.left, before.noticed)
    check = partial(_joins, prepared, stages.places)
    needs = SpareNeeds(setups_by, check, record.happened, record.notice, shadows_among, setups_by.keys)
    warm = WarmSpares(rings, endpoint, ray, donors, control.rounds, needs)
    there = NodesThere(ray.alive)
    starts = ClusterStarts(replacements, ray, setups_by, check, warm, NodesThere(ray.alive))
    fixed = beginning(
        prepared, stages.term, address, setups_by.token, setups_by.keys, setups_by.timeline, setups_by.shares
    )
    hours, drains = HourWatch(plan.fleet.nodes), DrainNotices(NodesThere(ray.draining), record.notice)

    def state() -> DriverState:
        changed = changing(control, rings, stages.places, stages.born, record, left)
        return state_of(fixed, changed, setups_by.threads)

    remembering = Remembering(stages.store, state, lambda: replacements.plan, record.notice)
    shut_out = ShutOutFile(prepared.folder.shut_out, left, record.notice)

    def remember() -> None:
        shut_out.keep()
        remembering()

    def requests() -> list[Request]:
        hours.know(replacements.plan.fleet.nodes)
        acting, now_s = None if setups_by.imitate is None else setups_by.imitate.acting, time.monotonic()
        acted = [] if acting is None else acting.turn(now_s, ray, left)
        drained = drains.turn(replacements.plan, now_s, left.names) if real and address is not None else []
        return [*asked(prepared.folder.path, hours if real else None, time.time()), *drained, *acted]

    considers = goes_on if anew is None else anew.steer(plan, replacements, control, record, there)
    return Recovery(
        starts,
        donors,
        StateHandover(partial(joining_states, prepared), disk, outbox, endpoint),
        NodeArrivals(replacements, record),
        NodeDepartures(starts, control, rings, record, left),
        SlowNodes(replacements, record, watches=address is not None),
        requests,
        ray.news,
        remember if real else lambda: None,
        considers if real else goes_on,
    )


def _nodes(plan: Plan) -> dict[str, str]:
    """By stage of the plan, its node."""
    return {
        stage_name(cluster.name, index): stage.node
        for cluster in plan.clusters
        for index, stage in enumerate(cluster.stages)
    }


def _speed(imitate: Imitation | None) -> float:
    return 1.0 if imitate is None else imitate.speed


def _joins(
    prepared: Prepared, places: dict[str, StageAddress], found: Mapping[str, StageAddress], nodes: Mapping[str, str]
) -> None:
    """New processes of stages listen: they must read the same data, and are known from now on."""
    check_same_data(prepared, {stage: at.samples for stage, at in found.items()}, nodes)
    places.update(found)


@contextmanager
def _ray(
    address: str | None,
    code: JobCode | None,
    log: Path,
    interrupt: StopOnInterrupt,
    ready: Callable[[Plan], Collection[str]],
) -> Iterator[RayCluster]:
    """The run's session of Ray, whose processes a closing terminal leaves alone."""
    with ExitStack() as leaving:
        with interrupt.hangup_deferred():
            ray = leaving.enter_context(RayCluster(address, code, log, beside=ready))
            interrupt.arm()  # again: Ray has set a handler of its own
        yield ray


def _ready_beside(job: Job, address: str | None) -> Callable[[Plan], Collection[str]]:
    """Which stages of a plan have a ready process beside them. On one machine they would share its memory and cores."""
    if job.ready_processes == "always":
        return lambda plan: _nodes(plan).keys()
    return beside if job.ready_processes == "auto" and address is not None else lambda plan: ()


def _record(
    prepared: Prepared,
    observer: report.Observer,
    writer: MetricsWriter,
    setups: Mapping[str, StageSetup],
    end: report.RunLimit,
) -> RunRecord:
    job = prepared.job
    return RunRecord(
        prepared.folder.path,
        observer,
        writer,
        stages=list(setups),
        last_stages={name: setup.cluster for name, setup in setups.items() if setup.is_last},
        samples_per_update=job.micro_batch * job.update_every,
        total_samples=end.samples,
        stop_s=end.seconds,
        metrics=build_metrics(job.metrics, search_dirs(prepared.plan.job_file)),
        rounds_before=prepared.rounds_before,
    )


def run_end(job: Job, total_samples: int | None, limit: report.RunLimit, speed: float = 1.0) -> report.RunLimit:
    """Where a session of a run ends: at the job's own end or at `limit`, whichever comes first.

    `total_samples` and `speed` are those of `run_control`.
    """
    seconds = None if job.stop.minutes is None else 60.0 * job.stop.minutes / speed
    return report.RunLimit(_earlier(total_samples, limit.samples), _earlier(seconds, limit.seconds))


def run_control(
    plan: Plan,
    job: Job,
    setups: Mapping[str, StageSetup],
    held_out: int,
    total_samples: int | None,
    resumed: ResumePosition | None,
    limit: report.RunLimit = report.NO_LIMIT,
    *,
    speed: float = 1.0,
    stands_by: bool = False,
    standing: Standing | None = None,
) -> c.RunControl:
    """The control of one session, with the owner of its rounds.

    Arguments:
        held_out: samples of the held-out set.
        total_samples: samples of the fleet at which the job ends; None for a job that ends by time.
        resumed: how far the run had come; None for a new one.
        limit: an end that may come before the job's own.
        speed: a run that imitates its machines goes so many times as fast, and takes that much less of the job's
            minutes.
        stands_by: the other stages of a lost cluster keep their state, to join again.
        standing: where the session stands, where another driver has begun it.
    """
    rates = {
        cluster.name: predicted.samples_per_s
        for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True)
    }
    any_setup = next(iter(setups.values()))
    end = run_end(job, total_samples, limit, speed)
    batches = EvaluationBatches(held_out, any_setup.evaluation.batch, short_last=any_setup.evaluation.short_last)
    shape = RunShape(
        clusters={cluster.name: len(cluster.stages) for cluster in plan.clusters},
        evaluators=tuple(sorted(rates, key=lambda name: -rates[name])),
        samples_per_update=job.micro_batch * job.update_every,
        stop_samples=end.samples,
        stop_s=end.seconds,
        evaluate_every=job.evaluate_every,
        held_out_batches=len(batches),
        stands_by=stands_by,
        hands_on=job.averaging.robust == "none",
        start_samples=0 if resumed is None else resumed.samples,
        start_updates={} if resumed is None else resumed.updates,
        start_unmade={} if resumed is None else resumed.unmade,
    )
    there = {name: setup for name, setup in setups.items() if setup.cluster in (standing or shape).clusters}
    rings = {
        str(segment.ring): [member for member in segment.members if member in there]
        for setup in there.values()
        for segment in setup.segments
    }
    clusters = {name: setup.cluster for name, setup in there.items()}
    under_way = None
    if standing is not None:
        made = {
            name: n - standing.begun.get(name, 0) for name, n in standing.updates.items() if name in standing.clusters
        }
        samples = {name: n * shape.samples_per_update for name, n in made.items()}
        under_way = RoundsUnderWay(standing.epoch, standing.committed, standing.opened, samples)
    owner = RoundOwner(
        rings, job.average_every, max_lag=job.max_lag, on_loss="reform", clusters=clusters, under_way=under_way
    )
    return c.RunControl(shape, owner, standing)


def _earlier(a: T | None, b: T | None) -> T | None:
    return min((each for each in (a, b) if each is not None), default=None)
