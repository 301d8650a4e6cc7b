"""A stage's process: it binds an endpoint, waits for its state, and runs until the driver says stop.

In: a setup, the peers' addresses, and weights from the driver. Out: a StageRuntime whose parts are joined, and which is
run to its end. There are two threads: the caller's owns the sockets, the other computes.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import psutil
import torch
from torch import Tensor

from ravnest.errors import NodeLost
from ravnest.job.materials import load_data
from ravnest.splitting import StageModule
from ravnest.stage import messages as m
from ravnest.stage.compute import StageCompute
from ravnest.stage.device import stage_device
from ravnest.stage.executor import Executor, ThreadExecutor
from ravnest.stage.messages import ALIVE_EVERY_S, STATE_DEADLINE_S
from ravnest.stage.reports import Timeline
from ravnest.stage.rounds import StageRounds
from ravnest.stage.runtime import StageRuntime
from ravnest.stage.setup import StageSetup
from ravnest.training.averaging import split_outer
from ravnest.training.batches import BatchSource
from ravnest.training.losses import build_loss, build_metrics
from ravnest.training.sampler import Sampler, evaluation_batches
from ravnest.training.weights import VersionedWeights
from ring_allreduce.transport import Endpoint, Lane, PeerAddress, TransportLimits, ZmqEndpoint

_POLL_S = 0.25
_CLOSE_S = 5.0
_QUEUE_SPARE_MESSAGES = 256


class StageProcess:
    """One stage, from binding to leaving."""

    def __init__(self, setup: StageSetup, host: str) -> None:
        self._setup = setup
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
        """Where the stage listens."""
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
            self._endpoint.connect(peers)
            begin, weights, optimizer = receive_state(self._endpoint)
            threads = self._setup.machine.threads
            executor = ThreadExecutor(self._endpoint.wake, prepare=lambda: torch.set_num_threads(threads))
            leaving.callback(executor.close, _CLOSE_S)
            runtime = assemble(self._setup, self._endpoint, executor, self._source, weights, optimizer, begin.version)
            started = m.StageStarted(process_bytes=psutil.Process().memory_info().rss)
            self._endpoint.send(m.DRIVER, Lane.PIPELINE, started)
            while not runtime.stopped:
                runtime.turn()


def batch_source(setup: StageSetup) -> BatchSource | None:
    """The batches of a first or last stage; None for any other stage."""
    if not (setup.is_first or setup.is_last):
        return None
    data = load_data(setup.job, setup.code.job_file)
    job = setup.job
    spans = evaluation_batches(len(data.held_out), setup.evaluation.batch, short_last=setup.evaluation.short_last)
    sampler = Sampler(len(data.train), job.seed, setup.bounds.share, job.micro_batch)
    return BatchSource(data, sampler, spans, setup.input_names)


def receive_state(
    endpoint: Endpoint, deadline_s: float = STATE_DEADLINE_S, now: Callable[[], float] = time.monotonic
) -> tuple[m.Begin, dict[str, Tensor], dict[tuple[str, str], Tensor]]:
    """Wait for the weights and the optimizer state.

    Returns the message by which the stage begins, weights and buffers by name, and the optimizer state by (parameter
    name, the optimizer's key). Raises NodeLost where nothing more comes for `deadline_s`.
    """
    begin: m.Begin | None = None
    weights: dict[str, Tensor] = {}
    optimizer: dict[tuple[str, str], Tensor] = {}
    last_s = next_alive_s = now()
    while begin is None or len(weights) + len(optimizer) < begin.tensors:
        for delivery in endpoint.poll(_POLL_S):
            if delivery.sender != m.DRIVER:
                continue  # nobody else has anything to say before the driver lets the run begin
            last_s = now()
            message = delivery.message
            if isinstance(message, m.Begin):
                begin = message
            elif isinstance(message, m.StateTensor) and len(delivery.tensors) == 1:
                if message.part == "weight":
                    weights[message.name] = delivery.tensors[0]
                else:
                    optimizer[message.name, message.key] = delivery.tensors[0]
        now_s = now()
        if now_s >= next_alive_s:
            next_alive_s = now_s + ALIVE_EVERY_S
            endpoint.send(m.DRIVER, Lane.PIPELINE, m.Alive(finished=len(weights) + len(optimizer)))
        if now_s - last_s > deadline_s:
            raise NodeLost(f"the driver sent no more state for {deadline_s:.0f} s")
    return begin, weights, optimizer


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
    job = setup.job
    dirs = [Path(path) for path in setup.code.search_dirs]
    stage_device(setup.machine.device)  # one that is not there is refused before weights are moved
    module = StageModule(setup.program, _widened(setup, state), setup.machine.device)
    weights = VersionedWeights(module, job.optimizer, version=version, borrowed=setup.tied.borrowed)
    own, outer = split_outer(optimizer_state)
    if own:
        weights.load_optimizer_state(own)
    rounds = StageRounds(setup, module, weights, endpoint)
    rounds.load_outer_state(outer)
    compute = StageCompute(
        setup,
        module,
        weights,
        source,
        build_loss(job.loss, dirs, setup.machine.device),
        build_metrics(job.metrics, dirs, setup.machine.device),
    )
    timeline = Timeline() if setup.timeline else None
    return StageRuntime(setup, endpoint, compute, rounds, executor, version=version, timeline=timeline, now=now)


def _widened(setup: StageSetup, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights in the model's precision. They may come in the narrower precision of a checkpoint."""
    program = setup.program
    dtypes = {spec.name: spec.dtype for spec in (*program.parameters, *program.borrowed, *program.buffers)}
    return {
        name: tensor.to(dtypes[name]) if tensor.is_floating_point() and name in dtypes else tensor
        for name, tensor in state.items()
    }
