"""The parts of a stage, joined: one that begins, one that joins a run, one that stands by, and a warm spare.

In: a stage's setup, its endpoint, and its state. Out: the object whose `turn` is called until it has stopped, and what
becomes of it then. process.py runs it; tests, trials of plans and measurements make stages by these functions, too.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import torch
from torch import Tensor

from ravnest.factories import import_modules
from ravnest.job.experts_table import asks_experts, open_experts
from ravnest.job.materials import load_data
from ravnest.job.readers import ReadAhead, Reader
from ravnest.pipeline import stage_name
from ravnest.pipeline.events import Started
from ravnest.splitting import StageModule
from ravnest.stage import messages as m
from ravnest.stage import shadow_messages as shm
from ravnest.stage.compute import StageCompute
from ravnest.stage.device import stage_device
from ravnest.stage.executor import Executor
from ravnest.stage.joining import Build, HeldStage, JoiningStage
from ravnest.stage.messages import ALIVE_EVERY_S, START_DEADLINE_S
from ravnest.stage.reports import Timeline
from ravnest.stage.rings import RoundRings, StageRings
from ravnest.stage.rounds import StageRounds
from ravnest.stage.runtime import StageRuntime
from ravnest.stage.setup import StageSetup
from ravnest.stage.shadowing import ShadowStage
from ravnest.stage.standing_by import KeptState, Stopped, kept_state
from ravnest.training.averaging import split_outer
from ravnest.training.batches import BatchSource
from ravnest.training.loss_parameters import module_with_parameters
from ravnest.training.losses import build_loss, build_metrics
from ravnest.training.sampler import EvaluationBatches, derive_seed
from ravnest.training.streams import sampler_of
from ravnest.training.weights import VersionedWeights
from ring_allreduce.transport import Endpoint, Lane, PeerAddress

T = TypeVar("T")


def batch_source(setup: StageSetup) -> BatchSource | None:
    """The batches of a first or last stage; None for any other stage."""
    if not (setup.is_first or setup.is_last):
        return None
    data = load_data(setup.job, setup.code.job_file)
    job = setup.job
    spans = EvaluationBatches(len(data.held_out), setup.evaluation.batch, short_last=setup.evaluation.short_last)
    order = setup.bounds.order
    seed = derive_seed(job.seed, order, 0, 0, "order") if order else job.seed
    sampler = sampler_of(data.train, seed, setup.bounds.share, job.micro_batch)
    if not data.workers:
        return BatchSource(data, sampler, spans, setup.input_names)
    readers = [Reader(job, setup.code.job_file) for _ in range(data.workers)]
    for reader in readers:
        reader.started()
    return ReadAhead(data, sampler, spans, setup.input_names, readers)


def living(
    endpoint: Endpoint,
    work: Callable[[], T],
    reported: int,
    threads: int,
    waited: Callable[[Future[T], float], bool] = lambda done, seconds: bool(wait([done], seconds).done),
) -> T:
    """Do some `work` that may take long, and return its result. Meanwhile the driver hears that the stage lives.

    Until START_DEADLINE_S has passed this counts as progress, of which the stage has `reported` so much already.

    Arguments:
        threads: torch's threads of the work.
        waited: waits so many seconds for the end of the work, and says whether it has ended.
    """
    with ThreadPoolExecutor(1, "long step", torch.set_num_threads, (threads,)) as aside:
        done, signs = aside.submit(work), 0
        while not waited(done, ALIVE_EVERY_S):
            signs = min(signs + 1, round(START_DEADLINE_S / ALIVE_EVERY_S))
            endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive(finished=reported + signs))
        return done.result()


def assemble(
    setup: StageSetup,
    endpoint: Endpoint,
    executor: Executor,
    source: BatchSource | None,
    state: Mapping[str, Tensor],
    optimizer_state: Mapping[tuple[str, str], Tensor],
    version: int,
    now: Callable[[], float] = time.monotonic,
    *,
    copy: bool = True,
) -> StageRuntime:
    """A stage of joined parts, which holds the given weights and optimizer state and has made `version` updates.

    copy: False lets the stage own and change what it is given, which takes half the memory meanwhile.
    """
    held = _held(setup, source, state, optimizer_state, version, StageRings(setup, endpoint), copy=copy)
    return _trains(setup, endpoint, executor, held, now)


def shadowing(
    setup: StageSetup, endpoint: Endpoint, source: BatchSource | None, now: Callable[[], float] = time.monotonic
) -> ShadowStage:
    """A warm spare, which follows the rings of its setup's segments."""
    return ShadowStage(setup, endpoint, _builder(setup, endpoint, source), started, now)


def place_taken(at: PeerAddress) -> shm.PlaceTaken:
    """What a warm spare tells that takes the place of a stage and listens there."""
    return shm.PlaceTaken(host=at.host, pipeline_port=at.pipeline_port, bulk_port=at.bulk_port)


def take_place(
    setup: StageSetup,
    shadow: ShadowStage,
    order: shm.TakePlace,
    endpoint: Endpoint,
    executor: Executor,
    source: BatchSource | None,
    now: Callable[[], float] = time.monotonic,
) -> JoiningStage:
    """The stage that a warm spare becomes: it joins, under its new name, with the anchor that the spare holds."""
    again = replace(setup, transport=replace(setup.transport, joins=True, epoch=order.epoch), initial=())
    return joining(again, endpoint, executor, source, now, kept_state(shadow))


def standing_by(stage: StageRuntime | JoiningStage) -> Stopped | None:
    """The stage, where it has stopped to join again; None for any other."""
    last: Stopped = stage.runtime if isinstance(stage, JoiningStage) and stage.runtime is not None else stage
    return None if last.stands_by is None else last


def stand_by(
    setup: StageSetup,
    stopped: Stopped,
    executor: Executor,
    source: BatchSource | None,
    now: Callable[[], float] = time.monotonic,
) -> JoiningStage:
    """The stage that a stage becomes which has stopped to stand by. Nothing computes there any more."""
    assert stopped.stands_by is not None
    again = replace(setup, transport=replace(setup.transport, joins=True, epoch=stopped.stands_by.epoch), initial=())
    endpoint, cluster = stopped.endpoint, range(setup.place.stages)
    endpoint.disconnect([stage_name(setup.cluster, i) for i in cluster if i != setup.index])
    return joining(again, endpoint, executor, source, now, kept_state(stopped))


def joining(
    setup: StageSetup,
    endpoint: Endpoint,
    executor: Executor,
    source: BatchSource | None,
    now: Callable[[], float] = time.monotonic,
    kept: KeptState | None = None,
) -> JoiningStage:
    """A stage of a cluster that joins a run which is under way. It waits for its state while it follows rounds.

    `kept`: the state that it has already.
    """

    def train(held: HeldStage, merged: int, contributed: int, term: int) -> StageRuntime:
        return _trains(setup, endpoint, executor, held, now, merged, contributed, term)

    return JoiningStage(setup, endpoint, _builder(setup, endpoint, source), train, started, now, kept)


def _builder(setup: StageSetup, endpoint: Endpoint, source: BatchSource | None) -> Build:
    """What makes the parts of a stage. Meanwhile the driver hears that it is alive."""

    def build(
        state: Mapping[str, Tensor], optimizer: Mapping[tuple[str, str], Tensor], version: int, rings: RoundRings
    ) -> HeldStage:
        work = partial(_held, setup, source, state, optimizer, version, rings)
        return living(endpoint, work, len(state) + len(optimizer), setup.machine.threads)

    return build


def began_s() -> float:
    """When this process began, in seconds since 1970. With its id it tells it from all others of its machine."""
    return float(psutil.Process().create_time())


def started() -> m.StageStarted:
    """What the driver is told once this process's stage holds its weights."""
    return m.StageStarted(process_bytes=psutil.Process().memory_info().rss)


def _held(
    setup: StageSetup,
    source: BatchSource | None,
    state: Mapping[str, Tensor],
    optimizer: Mapping[tuple[str, str], Tensor],
    version: int,
    rings: RoundRings,
    *,
    copy: bool = True,
) -> HeldStage:
    """The parts of a stage that hold its weights and its optimizer state."""
    compute = stage_compute(setup, source, state, version, copy=copy)
    open_experts(setup.job.experts, [setup.program], setup.code.job_file)
    own, outer = split_outer(optimizer)
    if own:
        compute.weights.load_optimizer_state(own, copy=copy)
    rounds = StageRounds(setup, compute.module, compute.weights, rings, lambda: compute.samples)
    rounds.load_outer_state(outer)
    return HeldStage(compute, rounds, version)


def _trains(
    setup: StageSetup,
    endpoint: Endpoint,
    executor: Executor,
    held: HeldStage,
    now: Callable[[], float],
    merged: int = 0,
    contributed: int = 0,
    term: int = 0,
) -> StageRuntime:
    """The stage at work. `merged` and `contributed` are the last rounds that it has merged and contributed to; `term`
    is that of the driver which it hears."""
    held.rounds.contributed = contributed
    return StageRuntime(
        setup,
        endpoint,
        held.compute,
        held.rounds,
        executor,
        started=Started(held.version, merged, contributed),
        timeline=Timeline() if setup.timeline else None,
        now=now,
        term=term,
    )


def stage_compute(
    setup: StageSetup,
    source: BatchSource | None,
    state: Mapping[str, Tensor],
    version: int = 0,
    *,
    copy: bool = True,
) -> StageCompute:
    """What computes a stage: a module with the weights `state`, an optimizer, and in a last stage loss and metrics.

    Runs, trials of plans and measurements of speed make a stage here. `copy`: the module has weights of its own, where
    their types are the model's.
    Raises InvalidInput as the user's factories, the operators' modules and the device do.
    """
    job, device = setup.job, setup.machine.device
    dirs = [Path(path) for path in setup.code.search_dirs]
    stage_device(device)  # one that is not there is refused before weights are moved
    import_modules(setup.program.imports, dirs)
    loss = build_loss(job.loss, dirs, device) if setup.is_last else None
    values = _in_models_types(setup, state)
    # What experts of others answered is not asked for again, so units that ask them are not run again.
    units = [(unit, not asks_experts(unit)) for unit in setup.units]
    module = StageModule(setup.program, values, device, copy=copy, loss=module_with_parameters(loss), units=units)
    weights = VersionedWeights(module, job.optimizer, version=version, borrowed=setup.tied.borrowed, masters=state)
    metrics = build_metrics(job.metrics, dirs, device) if setup.is_last else ()
    return StageCompute(setup, module, weights, source, loss, metrics)


def _in_models_types(setup: StageSetup, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in the model's types. A file may hold narrower ones, and the masters of narrow ones are wider."""
    program = setup.program
    dtypes = {spec.name: spec.dtype for spec in (*program.parameters, *program.borrowed, *program.buffers)}
    return {
        name: tensor.to(dtypes[name]) if tensor.is_floating_point() and name in dtypes else tensor
        for name, tensor in state.items()
    }
