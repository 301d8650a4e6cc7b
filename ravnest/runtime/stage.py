"""One stage at work: deliveries and finished computations become events, the machine's instructions become deeds.

The edge around StageMachine. It decides nothing about order; it checks what arrives (who sent it, and whether its
tensors are what the stage's program says) before the machine hears of it. One thread calls `turn`.
"""

import time
from collections.abc import Callable

from torch import Tensor

from ravnest.errors import NodeLost, RunFailed
from ravnest.pipeline import StageMachine, StageShape
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.runtime import messages as m
from ravnest.runtime.arrivals import check_tensors, expected_sender
from ravnest.runtime.compute import StageCompute
from ravnest.runtime.deadline import ALIVE_EVERY_S
from ravnest.runtime.exchange import RoundExchange
from ravnest.runtime.executor import Executor, Finished
from ravnest.runtime.outbox import Outbox
from ravnest.runtime.segments import StatePiece
from ravnest.runtime.setup import StageSetup
from ravnest.runtime.timeline import NETWORK, Timeline, subject
from ring_allreduce.patience import SilenceDeadline
from ring_allreduce.transport import Delivery, Endpoint, Lane, Message

_IDLE_POLL_S = 0.25

Tensors = tuple[Tensor, ...]


class StageRuntime:
    """Runs one stage from the moment it holds its weights until the driver says stop.

    A first stage waits for Go, since what it injects reaches stages that must hold their weights by then.
    """

    def __init__(
        self,
        setup: StageSetup,
        endpoint: Endpoint,
        compute: StageCompute,
        exchange: RoundExchange,
        executor: Executor,
        *,
        version: int,
        timeline: Timeline | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeline`: where to record what is done, if anybody wants it drawn."""
        job = setup.job
        self.setup = setup
        self._endpoint = endpoint
        self.compute = compute
        self._exchange = exchange
        self._executor = executor
        self._now = now
        self._outbox = Outbox(endpoint)
        self._machine = StageMachine(
            StageShape(
                stages=setup.stages,
                index=setup.index,
                update_every=job.update_every,
                max_staleness=job.max_staleness,
                window=setup.window,
                max_lag=job.max_lag,
                clip=job.optimizer.clip_norm is not None,
                schedule=job.schedule,
            )
        )
        self._timeline = timeline
        if timeline is not None:
            self._machine.ledger.on_span = timeline.computed
            exchange.on_ring_finished = lambda number, ring: timeline.change(ring, number, "finished", now())
        self._activations: dict[int, Tensors] = {}  # arrived, not yet used
        self._gradients: dict[int, Tensors] = {}
        self._evaluations: dict[tuple[int, int], Tensors] = {}
        self._to_send: dict[tuple[str, int, int], Tensors] = {}  # computed, not yet sent
        self._saving: set[int] = set()
        self._final_round: int | None = None
        self._driver = SilenceDeadline(now())
        self._echo: tuple[float | None, float] = None, 0.0  # the driver's clock as last heard, and when
        self._next_alive_s = now()
        self._version = version
        self._computations = 0
        self.stopped = False
        if not setup.is_first:
            self._handle(ev.Started(version=version))

    def turn(self, timeout_s: float = _IDLE_POLL_S) -> None:
        """One round of the loop. Raises RunFailed, NodeLost or what a computation raised: the stage must end."""
        for delivery in self._endpoint.poll(timeout_s):
            self._take(delivery)
        for finished in self._executor.finished():
            self._computations += 1
            self._take_finished(finished)
        self._merge_arrived(self._exchange.pump())
        self._outbox.flush()
        now_s = self._now()
        if now_s >= self._next_alive_s:
            self._next_alive_s = now_s + ALIVE_EVERY_S
            echo_s, heard_s = self._echo
            self._tell_driver(m.Alive(finished=self._computations, sent_s=now_s, echo_s=echo_s, heard_s=heard_s))
            self._tell_timeline()
        elif self._timeline is not None and self._timeline.has_piece:
            self._tell_timeline()
        if self._driver.expired(now_s):
            raise NodeLost(f"the driver has been silent for {self._driver.silent_s(now_s):.0f} s")

    def _take(self, delivery: Delivery) -> None:
        message = delivery.message
        if delivery.sender == m.DRIVER:
            self._driver.heard(self._now())
        if self._exchange.on_delivery(delivery):
            return
        if self._timeline is not None and (carried := subject(message)) is not None:
            now_s = self._now()
            self._timeline.add(NETWORK, f"receive {carried[0]}", carried[1], now_s, now_s)
        if delivery.sender != expected_sender(self.setup, message):
            raise RunFailed(f"{delivery.sender} sent {type(message).__name__}, which is not its to send")
        program = self.setup.program
        match message:
            case m.Activation():
                check_tensors(delivery, program.inputs)
                self._activations[message.micro_batch] = delivery.tensors
                self._handle(ev.ActivationArrived(message.micro_batch))
            case m.Gradient():
                needing = tuple(spec for spec in program.outputs if spec.needs_gradient)
                check_tensors(delivery, needing)
                self._gradients[message.micro_batch] = delivery.tensors
                self._handle(ev.GradientArrived(message.micro_batch, message.snapshot_round, message.norm_sq))
            case m.GlobalNorm():
                self._handle(ev.GlobalNormArrived(message.update, message.norm_sq))
            case m.EvaluationActivation():
                check_tensors(delivery, program.inputs)
                self._evaluations[message.evaluation, message.batch] = delivery.tensors
                self._handle(ev.EvaluationArrived(message.evaluation, message.batch, message.batches))
            case m.EvaluationCredit():
                self._handle(ev.EvaluationCredited(message.evaluation, message.batch))
            case m.RoundOpened():
                self._handle(ev.RoundOpened(message.round))
            case m.RoundCommitted():
                self._merge_arrived(self._exchange.on_committed(message))
            case m.Go():
                self._handle(ev.Started(version=self._version))
            case m.Drain():
                self._handle(ev.DrainRequested())
            case m.FinishRounds():
                self._final_round = message.up_to if message.final else None
                self._handle(ev.RoundsToFinish(message.up_to, message.updates))
            case m.Evaluate():
                self._handle(ev.EvaluationRequested(message.evaluation, message.batches))
            case m.Alive():
                self._echo = message.sent_s, self._now()
            case m.Stop():
                self._tell_timeline()
                self.stopped = True

    def _merge_arrived(self, rounds: list[int]) -> None:
        for number in rounds:
            self._handle(ev.MergeArrived(number))

    def _handle(self, event: ev.Event) -> None:
        for instruction in self._machine.handle(event, self._now()):
            self._perform(instruction)

    def _perform(self, instruction: ins.Instruction) -> None:
        match instruction:
            case ins.SendActivation(micro_batch):
                self._send(
                    +1,
                    m.Activation(micro_batch=micro_batch),
                    self._to_send.pop(("activation", micro_batch, 0)),
                )
            case ins.SendGradient(micro_batch, snapshot_round, norm_sq):
                header = m.Gradient(micro_batch=micro_batch, snapshot_round=snapshot_round, norm_sq=norm_sq)
                self._send(-1, header, self._to_send.pop(("gradient", micro_batch, 0)))
            case ins.SendGlobalNorm(update, norm_sq):
                self._send(+1, m.GlobalNorm(update=update, norm_sq=norm_sq))
            case ins.SendEvaluation(evaluation, batch, batches):
                head = m.EvaluationActivation(evaluation=evaluation, batch=batch, batches=batches)
                self._send(+1, head, self._to_send.pop(("evaluation", evaluation, batch)))
            case ins.CreditEvaluation(evaluation, batch):
                self._send(-self.setup.index, m.EvaluationCredit(evaluation=evaluation, batch=batch))
            case ins.ReportEvaluation(evaluation):
                self._report_evaluation(evaluation)
            case ins.ReportDrained(micro_batches, updates):
                self._tell_driver(m.Drained(micro_batches=micro_batches, updates=updates))
            case ins.ReportRoundsFinished(up_to):
                if up_to == self._final_round:
                    self.compute.adopt_anchor()  # nothing computes: the machine reports this only when idle
                self._tell_driver(m.RoundsFinished(up_to=up_to, spent=self._spent()))
            case ins.Fail(reason):
                raise RunFailed(reason)
            case _:
                self._start(instruction)

    def _start(self, instruction: ins.Compute) -> None:
        """Hand a computation to the executor, with the tensors that it needs."""
        compute = self.compute
        match instruction:
            case ins.RunForward(micro_batch):
                received = self._activations.pop(micro_batch, ())
                self._executor.submit(instruction, lambda: compute.forward(micro_batch, received))
            case ins.RunBackward(micro_batch):
                gradients = self._gradients.pop(micro_batch, ())
                ends = self._machine.shape.ends_group(micro_batch)
                self._executor.submit(instruction, lambda: compute.backward(micro_batch, gradients, ends))
            case ins.RunUpdate(_, norm_sq):
                staleness = self._machine.group_staleness
                self._executor.submit(instruction, lambda: compute.update(norm_sq, staleness))
            case ins.TakeSnapshot(number):
                self._executor.submit(instruction, lambda: compute.snapshot(number))
            case ins.ApplyMerge(number):
                averages, save = self._exchange.take(number)
                if save:
                    self._saving.add(number)
                self._executor.submit(instruction, lambda: compute.merge(number, averages, save))
            case ins.RunEvaluation(evaluation, batch):
                arrived = self._evaluations.pop((evaluation, batch), ())
                self._executor.submit(instruction, lambda: compute.evaluate(evaluation, batch, arrived))

    def _take_finished(self, finished: Finished) -> None:
        if finished.error is not None:
            raise finished.error
        if finished.took is not None:
            self._machine.ledger.computed(*finished.took)
        match finished.instruction:
            case ins.RunForward(micro_batch):
                self._to_send["activation", micro_batch, 0] = finished.result
                self._handle(ev.ForwardFinished(micro_batch))
                self._to_send.pop(("activation", micro_batch, 0), None)  # the last stage sends none
            case ins.RunBackward(micro_batch):
                self._to_send["gradient", micro_batch, 0], norm_sq = finished.result
                self._handle(ev.BackwardFinished(micro_batch, norm_sq))
                self._to_send.pop(("gradient", micro_batch, 0), None)  # the first stage sends none
            case ins.RunUpdate(update):
                lr, losses = finished.result
                staleness = self._machine.group_staleness
                self._tell_driver(
                    m.Updated(update=update, staleness=staleness, losses=losses, lr=lr, spent=self._spent())
                )
                self._handle(ev.UpdateFinished(update))
            case ins.TakeSnapshot(number):
                self._tell_driver(m.SnapshotTaken(round=number, update=self._machine.version))
                self._exchange.contribute(number, finished.result)
                self._draw_round(number, "in flight")
                self._handle(ev.SnapshotFinished(number))
            case ins.ApplyMerge(number):
                self._exchange.merged(number)
                self._merged(number, finished.result)
                self._handle(ev.MergeFinished(number))
            case ins.RunEvaluation(evaluation, batch):
                self._to_send["evaluation", evaluation, batch] = finished.result
                self._handle(ev.EvaluationForwardFinished(evaluation, batch))
                self._to_send.pop(("evaluation", evaluation, batch), None)

    def _merged(self, number: int, state: list[StatePiece]) -> None:
        self._tell_driver(m.RoundMerged(round=number))
        self._draw_round(number, None)
        if number not in self._saving:
            return
        self._saving.discard(number)
        for piece in state:
            header = m.StateTensor(part=piece.part, name=piece.name, key=piece.key, round=number)
            self._outbox.put(m.DRIVER, header, piece.tensor)
        self._outbox.put(m.DRIVER, m.StateSent(round=number, tensors=len(state)))

    def _report_evaluation(self, evaluation: int) -> None:
        sums = self.compute.evaluation_sums(evaluation)
        self._tell_driver(
            m.Evaluated(
                evaluation=evaluation,
                loss=(sums.loss.total, sums.loss.count),
                metrics=tuple((metric.total, metric.count) for metric in sums.metrics),
            )
        )

    def _send(self, step: int, message: Message, tensors: Tensors = ()) -> None:
        began_s = self._now()
        self._endpoint.send(self.setup.neighbour(step), Lane.PIPELINE, message, tensors)
        if self._timeline is not None and (carried := subject(message)) is not None:
            self._timeline.add(NETWORK, f"send {carried[0]}", carried[1], began_s, self._now())

    def _tell_driver(self, message: Message) -> None:
        self._endpoint.send(m.DRIVER, Lane.PIPELINE, message)

    def _spent(self) -> dict[str, float]:
        """The ledger, without what took no time."""
        return {state: seconds for state, seconds in self._machine.ledger.seconds.items() if seconds}

    def _draw_round(self, number: int, kind: str | None) -> None:
        if self._timeline is not None:
            for segment in self.setup.segments:
                self._timeline.change(segment.ring, number, kind, self._now())

    def _tell_timeline(self) -> None:
        if self._timeline is not None:
            for piece in self._timeline.pieces():
                self._tell_driver(piece)
