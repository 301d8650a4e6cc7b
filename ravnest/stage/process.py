"""A stage's process: it binds an endpoint, waits for its state, and runs until the driver says stop.

In: a setup, the peers' addresses, and from the driver the weights that the stage does not make itself. Out: a
StageRuntime whose parts are joined, and which is run to its end. There are two threads: the caller's owns the sockets,
the other computes.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import torch
from torch import Tensor

from ravnest.errors import NodeLost
from ravnest.factories import import_modules
from ravnest.job.materials import load_data
from ravnest.job.readers import ReadAhead, Reader
from ravnest.pipeline import stage_name
from ravnest.pipeline.events import Started
from ravnest.splitting import StageModule
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage.compute import StageCompute
from ravnest.stage.device import stage_device
from ravnest.stage.executor import Executor, ThreadExecutor
from ravnest.stage.joining import ArrivingState, HeldStage, JoiningStage
from ravnest.stage.messages import ALIVE_EVERY_S, START_DEADLINE_S, STATE_DEADLINE_S, STOOD_STILL_S
from ravnest.stage.reports import Timeline
from ravnest.stage.rings import StageRings
from ravnest.stage.rounds import StageRounds
from ravnest.stage.runtime import StageRuntime
from ravnest.stage.setup import StageSetup
from ravnest.stage.standing_by import KeptState, Stopped, kept_state
from ravnest.training.averaging import split_outer
from ravnest.training.batches import BatchSource
from ravnest.training.loss_parameters import module_with_parameters
from ravnest.training.losses import build_loss, build_metrics
from ravnest.training.sampler import EvaluationBatches, derive_seed
from ravnest.training.streams import sampler_of
from ravnest.training.weights import VersionedWeights
from ring_allreduce.rounds import AwakeTime
from ring_allreduce.transport import Endpoint, Lane, PeerAddress, TransportLimits, ZmqEndpoint

_POLL_S = 0.25
_CLOSE_S = 5.0
_QUEUE_SPARE_MESSAGES = 256
T = TypeVar("T")


class StageProcess:
    """One stage, from binding to leaving."""

    def __init__(self, setup: StageSetup, host: str) -> None:
        self._setup = setup
        self._noticed = False
        self.trains = False
        """Whether the stage has begun to train."""
        torch.set_num_threads(setup.machine.threads)
        self._source = batch_source(setup)
        window = (setup.job.max_staleness + 1) * setup.job.update_every
        self._endpoint = ZmqEndpoint(
            setup.name,
            codec=m.codec(),
            token=setup.transport.token,
            host=host,
            limits=TransportLimits(
                max_message_bytes=setup.transport.max_message_bytes,
                queue_messages=2 * window + _QUEUE_SPARE_MESSAGES,
                in_flight_bytes=setup.transport.in_flight_bytes,
            ),
            links=setup.imitated.links,
            node=setup.imitated.node,
            keys=setup.transport.keys,
        )

    @property
    def address(self) -> PeerAddress:
        """The address at which the stage listens."""
        return self._endpoint.address

    @property
    def samples(self) -> tuple[int, int] | None:
        """The samples of the training and the held-out set; None where this stage reads neither."""
        return None if self._source is None else self._source.samples

    def run(self, peers: Mapping[str, PeerAddress]) -> None:
        """Train until the driver says stop. Raises whatever else ends it. Then computing has ended, and the endpoint is
        closed."""
        with ExitStack() as leaving:
            leaving.callback(self._endpoint.close)
            if self._source is not None:
                leaving.callback(self._source.close)
            self._endpoint.connect(peers)
            threads = self._setup.machine.threads
            executor = ThreadExecutor(self._endpoint.wake, prepare=lambda: torch.set_num_threads(threads))
            leaving.callback(executor.close, _CLOSE_S)
            stage = self._begin(executor)
            self._work(stage)
            while (stopped := standing_by(stage)) is not None:
                self._rest(executor)
                executor = ThreadExecutor(self._endpoint.wake, prepare=lambda: torch.set_num_threads(threads))
                leaving.callback(executor.close, _CLOSE_S)
                stand = partial(stand_by, self._setup, stopped, executor, self._source)
                stage = living(self._endpoint, stand, 0, threads)
                self._work(stage)

    def _begin(self, executor: Executor) -> StageRuntime | JoiningStage:
        if self._setup.transport.joins:
            return joining(self._setup, self._endpoint, executor, self._source)
        made = make_initial(self._setup, self._endpoint)
        begin, weights, optimizer = receive_state(self._endpoint)
        weights |= made
        make = partial(assemble, self._setup, self._endpoint, executor, self._source, weights, optimizer, begin.version)
        runtime = living(self._endpoint, make, begin.tensors, self._setup.machine.threads)
        self._endpoint.send(m.DRIVER, Lane.PIPELINE, _started())
        return runtime

    def _rest(self, executor: ThreadExecutor) -> None:
        """Wait for the end of the computation that is under way. Meanwhile the driver hears that the stage lives."""
        while executor.is_alive:
            executor.close(ALIVE_EVERY_S)
            self._endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive())

    def give_notice(self) -> None:
        """The process is to end soon: let the driver know. A handler of signals may call it."""
        self._noticed = True
        self._endpoint.wake()

    def _work(self, stage: StageRuntime | JoiningStage) -> None:
        told = False
        self.trains = True
        while not stage.stopped:
            stage.turn()
            if self._noticed and not told:
                told = True
                self._endpoint.send(m.DRIVER, Lane.PIPELINE, em.NoticeGiven())


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


def make_initial(setup: StageSetup, endpoint: Endpoint, now: Callable[[], float] = time.monotonic) -> dict[str, Tensor]:
    """The weights that the stage makes itself, by name. Meanwhile the driver hears that it is alive."""
    next_alive_s, steps = now(), 0

    def step_done() -> None:
        nonlocal next_alive_s, steps
        steps += 1
        if now() >= next_alive_s:
            next_alive_s = now() + ALIVE_EVERY_S
            endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive(finished=steps))

    return {name: tensor for each in setup.initial for name, tensor in each.make(setup.job.seed, step_done).items()}


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


def receive_state(
    endpoint: Endpoint, deadline_s: float = STATE_DEADLINE_S, now: Callable[[], float] = time.monotonic
) -> tuple[m.Begin, dict[str, Tensor], dict[tuple[str, str], Tensor]]:
    """Wait for the weights and the optimizer state.

    Returns the message by which the stage begins, weights and buffers by name, and the optimizer state by (parameter
    name, the optimizer's key). Raises NodeLost where nothing more comes for `deadline_s`.
    """
    state = ArrivingState()
    awake = AwakeTime(STOOD_STILL_S, ALIVE_EVERY_S)
    last_s = next_alive_s = awake.at(now())
    while (begin := state.whole) is None:
        for delivery in endpoint.poll(_POLL_S):
            if delivery.sender != m.DRIVER:
                continue  # nobody else has anything to say before the driver lets the run begin
            last_s = awake.at(now())
            if state.take(delivery):
                next_alive_s = last_s  # the driver sends no more before it knows what has come
        now_s = awake.at(now())
        if now_s >= next_alive_s:
            next_alive_s = now_s + ALIVE_EVERY_S
            endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive(finished=state.tensors))
        if now_s - last_s > deadline_s:
            raise NodeLost(f"the driver sent no more state for {deadline_s:.0f} s")
    return begin, state.weights, state.optimizer


def assemble(
    setup: StageSetup,
    endpoint: Endpoint,
    executor: Executor,
    source: BatchSource | None,
    state: Mapping[str, Tensor],
    optimizer_state: Mapping[tuple[str, str], Tensor],
    version: int,
    now: Callable[[], float] = time.monotonic,
) -> StageRuntime:
    """A stage of joined parts, which holds the given weights and optimizer state and has made `version` updates."""
    held = _held(setup, source, state, optimizer_state, version, StageRings(setup, endpoint))
    return _trains(setup, endpoint, executor, held, now)


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

    def train(held: HeldStage, merged: int, contributed: int) -> StageRuntime:
        return _trains(setup, endpoint, executor, held, now, merged, contributed)

    def build(
        state: Mapping[str, Tensor], optimizer: Mapping[tuple[str, str], Tensor], version: int, rings: StageRings
    ) -> HeldStage:
        work = partial(_held, setup, source, state, optimizer, version, rings)
        return living(endpoint, work, len(state) + len(optimizer), setup.machine.threads)

    return JoiningStage(setup, endpoint, build, train, _started, now, kept)


def began_s() -> float:
    """When this process began, in seconds since 1970. With its id it tells it from all others of its machine."""
    return float(psutil.Process().create_time())


def _started() -> m.StageStarted:
    """What the driver is told once this process's stage holds its weights."""
    return m.StageStarted(process_bytes=psutil.Process().memory_info().rss)


def _held(
    setup: StageSetup,
    source: BatchSource | None,
    state: Mapping[str, Tensor],
    optimizer: Mapping[tuple[str, str], Tensor],
    version: int,
    rings: StageRings,
) -> HeldStage:
    """The parts of a stage that hold its weights and its optimizer state."""
    compute = stage_compute(setup, source, _widened(setup, state), version)
    own, outer = split_outer(optimizer)
    if own:
        compute.weights.load_optimizer_state(own)
    rounds = StageRounds(setup, compute.module, compute.weights, rings)
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
) -> StageRuntime:
    """The stage at work. `merged` and `contributed` are the last rounds that it has merged and contributed to."""
    return StageRuntime(
        setup,
        endpoint,
        held.compute,
        held.rounds,
        executor,
        started=Started(held.version, merged, contributed),
        timeline=Timeline() if setup.timeline else None,
        now=now,
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

    Runs, trials of plans and measurements of speed make a stage here. `copy`: the module has weights of its own.
    Raises InvalidInput as the user's factories, the operators' modules and the device do.
    """
    job, device = setup.job, setup.machine.device
    dirs = [Path(path) for path in setup.code.search_dirs]
    stage_device(device)  # one that is not there is refused before weights are moved
    import_modules(setup.program.imports, dirs)
    loss = build_loss(job.loss, dirs, device) if setup.is_last else None
    module = StageModule(setup.program, state, device, copy=copy, loss=module_with_parameters(loss))
    weights = VersionedWeights(module, job.optimizer, version=version, borrowed=setup.tied.borrowed)
    metrics = build_metrics(job.metrics, dirs, device) if setup.is_last else ()
    return StageCompute(setup, module, weights, source, loss, metrics)


def _widened(setup: StageSetup, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in the model's precision. They may come in the narrower precision of a checkpoint."""
    program = setup.program
    dtypes = {spec.name: spec.dtype for spec in (*program.parameters, *program.borrowed, *program.buffers)}
    return {
        name: tensor.to(dtypes[name]) if tensor.is_floating_point() and name in dtypes else tensor
        for name, tensor in state.items()
    }
