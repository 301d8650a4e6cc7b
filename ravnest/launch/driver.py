"""`run`: from a plan to trained weights. The story of a run, top to bottom; each step lives in a module of its own.

Ray starts its actors while this process captures the model; then the weights go out, the loop runs, and what came of it
is written down. Holds the whole model's initial weights once, in this process, unless it resumes (docs/limits.md).
"""

import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from cluster_planner import Plan
from ravnest.errors import InvalidInput, RunFailed
from ravnest.job import JobConfig, differs, job_from_mapping
from ravnest.launch import control as c
from ravnest.launch import report
from ravnest.launch.collect import CheckpointCollector
from ravnest.launch.folder import RunFolder, open_folder
from ravnest.launch.handout import hand_out
from ravnest.launch.interrupt import StopOnInterrupt
from ravnest.launch.loop import DriverLoop
from ravnest.launch.membership import FailStop
from ravnest.launch.outcome import finish
from ravnest.launch.ray_cluster import RayCluster, check_address
from ravnest.launch.record import RunRecord
from ravnest.launch.resume import Resumed, states_for, writer_opener
from ravnest.launch.setups import check_fingerprint, stage_setups
from ravnest.materials import capture_job, load_data, search_dirs
from ravnest.materials import total_samples as total_samples_of
from ravnest.runtime import messages as m
from ravnest.runtime.deadline import START_DEADLINE_S
from ravnest.runtime.outbox import Outbox
from ravnest.runtime.setup import StageSetup
from ravnest.training.losses import build_metrics
from ravnest.training.metrics import MetricsWriter
from ravnest.training.sampler import evaluation_batches
from ravnest.trial import check_shares
from ravnest.workload import check_workload
from ring_allreduce import RoundOwner
from ring_allreduce.transport import TransportLimits, ZmqEndpoint

_QUEUE_MESSAGES = 4096
_TOKEN_BYTES = 16


def run(
    plan: Plan,
    plan_path: Path,
    *,
    address: str | None = None,
    resume: bool = False,
    out_dir: Path | None = None,
    observer: report.Observer,
    imitate: bool = False,
) -> report.RunResult:
    """Train as the plan says and return what came of it.

    `plan_path`: where the plan was read; a copy goes into the run's folder. `address`: a running Ray cluster; None
    starts one on this machine and places every stage on it. `imitate`: pad each stage's compute and shape each link to
    what the plan says of its node. Raises InvalidInput, RunFailed or NodeLost.
    """
    job = job_from_mapping(plan.job, path=str(plan_path), under="job.")
    check_workload(plan, job, plan_path)
    folder = open_folder(out_dir, resume=resume)
    resumed = Resumed.load(folder, plan, job) if resume else None
    if differs(job, plan.job_file):
        observer.on(report.Notice(f"{plan.job_file} has changed since the plan was made: the job in the plan counts"))
    rounds_before = 0 if resumed is None else resumed.rounds
    if not Path(plan.job_file).parent.is_dir():
        raise InvalidInput(
            f"the job's folder {Path(plan.job_file).parent} is gone: plan again where the job lies now",
            path=str(plan_path),
            key="job_file",
        )
    if address is not None:
        check_address(address)
    observer.on(report.Phase("preparing", "reading the data and capturing the model"))
    data = load_data(job, plan.job_file)
    captured = capture_job(job, plan.job_file, data)
    check_fingerprint(plan, captured, plan_path)
    total_samples = total_samples_of(job, len(data.train), plan.job_file)
    check_shares(job, plan.job_file, plan, len(data.train))
    if resumed is not None and total_samples is not None and resumed.samples >= total_samples:
        raise InvalidInput(
            f"the run has made {resumed.samples} of {total_samples} samples: nothing is left to do; plan again with a"
            " later `stop` to go on",
            path=str(folder.path),
        )
    folder.keep_plan(plan_path)
    observer.on(report.Phase("starting Ray", address or "on this machine"))
    with RayCluster(address) as ray, StopOnInterrupt() as interrupt:
        setups = stage_setups(
            plan,
            job,
            captured,
            search_dirs=search_dirs(plan.job_file),
            threads=ray.threads(plan),
            total_samples=total_samples,
            token=secrets.token_bytes(_TOKEN_BYTES),
            imitate=imitate,
        )
        nodes = {
            m.stage_name(cluster.name, index): stage.node
            for cluster in plan.clusters
            for index, stage in enumerate(cluster.stages)
        }
        observer.on(report.Phase("placing stages", f"{len(setups)} processes"))
        ray.place(plan, setups, nodes)
        states = states_for(setups, plan, job, resumed)  # while the actors import torch
        peers = {stage: address.peer for stage, address in ray.prepare(START_DEADLINE_S).items()}
        endpoint = _endpoint(next(iter(setups.values())), ray.host)
        try:
            endpoint.connect(peers)
            ray.start({**peers, m.DRIVER: endpoint.address})
            with MetricsWriter(folder.metrics) as writer, ThreadPoolExecutor(1, "disk") as disk:
                record = _record(folder, observer, writer, setups, job, total_samples, rounds_before)
                observer.on(report.Phase("handing out weights"))
                outbox = Outbox(endpoint)
                hand_out(outbox, endpoint, setups.values(), states)
                del states
                round_trip_s = max(cluster.round_trip_s for cluster in plan.predicted.clusters)
                control = run_control(plan, job, setups, len(data.held_out), total_samples, resumed)
                loop = DriverLoop(
                    endpoint=endpoint,
                    news=ray,
                    outbox=outbox,
                    control=control,
                    membership=FailStop(nodes, time.monotonic(), round_trip_s=round_trip_s),
                    collector=CheckpointCollector(setups, writer_opener(folder, plan, job, resumed), disk),
                    record=record,
                    firsts=[m.stage_name(cluster.name, 0) for cluster in plan.clusters],
                    stop_wanted=lambda: interrupt.wanted,
                )
                interrupt.gracefully = True
                try:
                    loop.run()
                except RunFailed as error:
                    raise type(error)(f"{error}; {folder.advice(plan_path)}") from error
        finally:
            endpoint.close()
    return finish(
        folder,
        plan,
        job,
        data,
        record,
        control,
        rounds=rounds_before + control.rounds_committed,
        stopped_early=interrupt.wanted,
    )


def _endpoint(any_setup: StageSetup, host: str) -> ZmqEndpoint:
    return ZmqEndpoint(
        m.DRIVER,
        codec=m.codec(),
        token=any_setup.token,
        host=host,
        limits=TransportLimits(max_message_bytes=any_setup.max_message_bytes, queue_messages=_QUEUE_MESSAGES),
    )


def _record(
    folder: RunFolder,
    observer: report.Observer,
    writer: MetricsWriter,
    setups: Mapping[str, StageSetup],
    job: JobConfig,
    total_samples: int | None,
    rounds_before: int,
) -> RunRecord:
    dirs = [Path(path) for path in next(iter(setups.values())).search_dirs]
    return RunRecord(
        folder.path,
        observer,
        writer,
        stages=list(setups),
        last_stages={name: setup.cluster for name, setup in setups.items() if setup.is_last},
        samples_per_update=job.micro_batch * job.update_every,
        total_samples=total_samples,
        metrics=build_metrics(job.metrics, dirs),
        rounds_before=rounds_before,
    )


class Position(Protocol):
    """How far a resumed run has come."""

    @property
    def samples(self) -> int: ...

    @property
    def updates(self) -> Mapping[str, int]: ...


def run_control(
    plan: Plan,
    job: JobConfig,
    setups: Mapping[str, StageSetup],
    held_out: int,
    total_samples: int | None,
    resumed: Position | None,
) -> c.RunControl:
    rates = {
        cluster.name: predicted.samples_per_s
        for cluster, predicted in zip(plan.clusters, plan.predicted.clusters, strict=True)
    }
    any_setup = next(iter(setups.values()))
    batches = evaluation_batches(held_out, any_setup.evaluation_batch, short_last=any_setup.evaluation_short_last)
    shape = c.RunShape(
        clusters={cluster.name: len(cluster.stages) for cluster in plan.clusters},
        evaluator=max(rates, key=lambda name: rates[name]),
        samples_per_update=job.micro_batch * job.update_every,
        stop_samples=total_samples,
        stop_s=None if job.stop.minutes is None else 60.0 * job.stop.minutes,
        evaluate_every=job.evaluate_every,
        held_out_batches=len(batches),
        start_samples=0 if resumed is None else resumed.samples,
        start_updates={} if resumed is None else resumed.updates,
    )
    rings = {str(number): [m.stage_name(*member) for member in ring.members] for number, ring in enumerate(plan.rings)}
    return c.RunControl(shape, RoundOwner(rings, job.average_every, max_lag=job.max_lag))
