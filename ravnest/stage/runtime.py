"""One stage at work: it turns deliveries and finished computations into events of the stage machine, and carries out
the machine's instructions.

In: deliveries of the endpoint, and results of the executor. Out: messages, and computations.

StageMachine decides about order. What arrives is checked before the machine hears of it: who sent it, and whether its
tensors are what the stage's program says. One thread calls `turn` and owns the sockets. The computing thread gives
results to the machine itself, and begins what comes next, since on a busy machine it takes milliseconds to wake the
other thread in between. A thread takes the lock before it gives anything to the machine.
"""

import threading
import time
from collections.abc import Callable, Iterable

from torch import Tensor

from ravnest.errors import InvalidInput, RunFailed, WrongMessage
from ravnest.pipeline import events as ev
from ravnest.pipeline import instructions as ins
from ravnest.pipeline.tuned_stage import Passage, TunedStage
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ravnest.stage.boundary_tensors import StageCrossings, check_tensors, expected_sender
from ravnest.stage.compute import StageCompute
from ravnest.stage.compute_tasks import ComputeTasks
from ravnest.stage.executor import ComputeFinished, Executor
from ravnest.stage.messages import ALIVE_EVERY_S, STOOD_STILL_S
from ravnest.stage.orphan import DriverWatch
from ravnest.stage.reports import Reports, Timeline
from ravnest.stage.rings import member_rings
from ravnest.stage.rounds import StageRounds
from ravnest.stage.sends import Sends
from ravnest.stage.setup import StageSetup
from ravnest.stage.state_sending import StateFile
from ring_allreduce.rounds import AwakeTime
from ring_allreduce.transport import Delivery, Endpoint, Message, Outbox, PeerAddress, Unacceptable

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
        rounds: StageRounds,
        executor: Executor,
        *,
        started: ev.Started,
        timeline: Timeline | None = None,
        now: Callable[[], float] = time.monotonic,
        term: int = 0,
    ) -> None:
        """`started`: where the stage is in the run. `timeline`: where to record what is done. `term`: its driver's."""
        self.setup = setup
        self.endpoint = endpoint
        self.compute = compute
        self.rounds = rounds
        self.rings = member_rings(rounds.rings)
        self._executor = executor
        self._crossings = StageCrossings(setup)
        self._now = now
        self._outbox = Outbox(endpoint)
        self._tuned = TunedStage(
            setup.shape,
            setup.bounds.largest_window,
            lambda tuner: self._reports.window(tuner),
            split=setup.job.split_backward,
            on_split=lambda tuner: self._reports.split(tuner),
        )
        self.machine = self._tuned.machine
        rings = tuple(segment.ring for segment in setup.segments)
        self._lock = threading.RLock()
        self._sends = Sends(endpoint, lambda message, began_s: self._reports.sent(message, began_s), now)
        self._tasks = ComputeTasks(compute, rounds, self.machine, self._crossings, setup, endpoint.stats.lateness, now)
        tell, ledger, late, sent = self._sends.tell, self.machine.ledger, self._tasks.late, endpoint.stats
        self._reports = Reports(tell, ledger, rings, compute.peaks, timeline, now, late, sent, setup.job.experts)
        self.rings.tell = tell
        self.rings.on_ring_finished = lambda number, ring: self._reports.round_is(number, "finished", ring)
        self._to_send: dict[tuple[str, int, int], Tensors] = {}  # computed, not yet sent
        self._measure_averaging()
        self._final_round: int | None = None
        self._awake = AwakeTime(STOOD_STILL_S, ALIVE_EVERY_S)
        self._driver = DriverWatch(self._awake.at(now()), 60.0 * setup.job.wait_for_driver_minutes)
        self._snapshots: dict[int, int] = {}
        """By round, from the last merged one on: after how many updates this stage contributed to it."""
        self.term, self._started = term, started
        rounds.rests_at = lambda: self.machine.rests_at
        self._split_tried = self.stopped = False
        self.stands_by: em.StandBy | None = None
        """The order by which the stage has stopped, but is to join again; None otherwise."""
        self.left: list[Delivery] = []
        """What has arrived after that order."""
        executor.listen(self._computed)
        if not setup.is_first:
            self._handle(started)

    @property
    def unsent(self) -> int:
        """The number of messages in the pipeline's lane that wait to be sent."""
        return self._sends.waiting

    @property
    def computations(self) -> int:
        """The number of computations that have finished."""
        return self._reports.computations

    def begin_with(self, early: Iterable[Delivery]) -> None:
        """Begin to train in a run that is under way. `early` is what has come for this stage already, in order."""
        with self._lock:
            if self.setup.is_first:
                self._handle(self._started)
            for delivery in early:
                self._take(delivery)

    def turn(self, timeout_s: float = _IDLE_POLL_S) -> None:
        """One pass of the loop, which waits for at most `timeout_s`.

        Raises RunFailed, NodeLost or what a computation raised. The stage has stopped then.
        """
        try:
            deliveries = self.endpoint.poll(timeout_s)
            with self._lock:
                self._sends.flush()
                for delivery in deliveries:
                    if self.stands_by is None:
                        self._take(delivery)
                    else:
                        self.left.append(delivery)
                if self.stands_by is not None:
                    return
                for finished in self._executor.finished():
                    self._take_finished(finished)
                self._merge_arrived(self.rings.pump())
                for message, tensors in self.rounds.sending.pieces():
                    self._outbox.put(m.DRIVER, message, tensors)
                for peer, piece, tensors in self.rounds.pieces():
                    self._outbox.put(peer, piece, tensors)
                self._outbox.flush()
                now_s = self._now()
                self._reports.turn(now_s)
                if self._driver.look(self._awake.at(now_s)) and self.setup.is_first:
                    self._handle(ev.DriverSilent())
        except BaseException:
            with self._lock:  # or the computing thread would go on by itself
                self.stopped = True
            raise

    def _computed(self, finished: ComputeFinished) -> bool:
        """Take a result in the computing thread, so that the stage goes on at once. Returns False for results that
        concern rounds and for errors, which the other thread takes."""
        with self._lock:
            if self.stopped:
                return True  # the result is not needed any more
            if finished.error is not None or isinstance(finished.instruction, ins.TakeSnapshot | ins.ApplyMerge):
                return False
            self._take_finished(finished)
            if self.rounds.sending.ready or self.rounds.giving.ready:  # it had to wait where this was an update
                self.endpoint.wake()
        return True

    def _take(self, delivery: Delivery) -> None:
        """Act on what has arrived. Where that ends the stage, the error names who sent it, and not the job."""
        try:
            self._act_on(delivery)
        except WrongMessage:
            raise
        except (RunFailed, InvalidInput) as error:
            raise WrongMessage(delivery.sender, f"sent {type(delivery.message).__name__}: {error}") from error

    def _act_on(self, delivery: Delivery) -> None:
        message = delivery.message
        if delivery.sender == m.DRIVER:
            if isinstance(message, em.TakeOver):
                self._taken_over(message)
            elif delivery.epoch < self.term:
                return  # of a driver whose run was taken over
            if self._driver.heard(self._awake.at(self._now())) and self.setup.is_first:
                self._handle(ev.DriverHeard())
        if self.rings.on_delivery(delivery):
            return
        if delivery.sender != m.DRIVER and delivery.epoch < self.setup.transport.epoch:
            return  # its process had that name before this stage's cluster began anew
        if self.rounds.take(delivery):
            return
        if isinstance(message, Unacceptable):
            raise WrongMessage(delivery.sender, f"sent what none of its kind sends: {message.reason}")
        if delivery.sender != expected_sender(self.setup, message):
            raise WrongMessage(delivery.sender, f"sent {type(message).__name__}, which is not its to send")
        self._reports.received(message)
        match message:
            case m.Activation():
                check_tensors(delivery, self._crossings.activations_in.travelling)
                self._tasks.arrived("activation", (message.micro_batch,), delivery.tensors)
                self._handle(ev.ActivationArrived(message.micro_batch))
            case m.Gradient():
                check_tensors(delivery, self._crossings.gradients_in.travelling)
                self._tasks.arrived("gradient", (message.micro_batch,), delivery.tensors)
                event = ev.GradientArrived(message.micro_batch, message.snapshot_round, message.norm_sq)
                self._handle(event, Passage(message.queued_s, message.busiest_s))
            case m.GlobalNorm():
                self._handle(ev.GlobalNormArrived(message.update, message.norm_sq))
            case m.TiedWeights():
                check_tensors(delivery, self.compute.tied.expected(message))
                self.compute.tied.arrived_weights(message, delivery.tensors)
                self._send_parcels()
            case m.TiedGradients():
                check_tensors(delivery, self.compute.tied.expected(message))
                self.compute.tied.arrived_gradients(message, delivery.tensors)
            case m.EvaluationActivation():
                check_tensors(delivery, self._crossings.held_out.travelling)
                self._tasks.arrived("evaluation", (message.evaluation, message.batch), delivery.tensors)
                self._handle(ev.EvaluationArrived(message.evaluation, message.batch, message.batches))
            case m.EvaluationCredit():
                self._handle(ev.EvaluationCredited(message.evaluation, message.batch))
            case m.RoundOpenedMessage():
                self._handle(ev.RoundOpened(message.round))
            case m.RoundCommittedMessage():
                self._merge_arrived(self.rings.on_committed(message))
            case em.RingsReformedMessage():
                self._merge_arrived(self.rings.on_reformed(message))
                self.rounds.forget(message.lost)
                for peer in message.lost:
                    self._outbox.forget(peer)
            case em.RoundsResumedMessage():
                self._merge_arrived(self.rings.on_resumed(message))
            case em.SendState():
                self.rounds.sending.begin(message.round, self.rounds.state_files())
            case sm.StateWanted():
                self.rounds.sending.wanted(message.round, message.pieces)
            case m.Go():
                self._handle(self._started)
            case m.Drain():
                self._handle(ev.DrainRequested())
            case m.FinishRounds():
                self._final_round = message.up_to if message.final else None
                self._handle(ev.RoundsToFinish(message.up_to, message.updates))
            case m.Evaluate():
                self._handle(ev.EvaluationRequested(message.evaluation, message.batches))
            case m.Alive():
                self._reports.heard_driver(message)
            case em.StandBy():
                self.stands_by = message
                self.stopped = True
            case m.Stop():
                self._reports.all()
                self.stopped = True

    def _taken_over(self, message: em.TakeOver) -> None:
        """Turn to another driver. Nothing changes where it is one of before."""
        if message.term <= self.term:
            return
        self.term, machine = message.term, self.machine
        self.endpoint.disconnect([m.DRIVER])
        self.endpoint.connect({m.DRIVER: PeerAddress(message.host, message.pipeline_port, message.bulk_port)})
        self._sends.forget_reports()
        self._outbox.forget(m.DRIVER)
        self.rounds.turn_to_another_driver()
        self.rings.save_nothing()
        self._tasks.saving.clear()
        position = em.StagePosition(
            term=message.term,
            version=machine.version,
            opened=machine.opened,
            committed=self.rings.committed,
            epoch=self.endpoint.epoch,
            snapshots=tuple(sorted(self._snapshots.items())),
            evaluation=machine.newest_evaluation,
            drains=machine.drains,
        )
        self._reports.tell(position)
        if self.setup.is_first:
            self._handle(ev.DriverHeard(another=True))

    def _merge_arrived(self, rounds: list[int]) -> None:
        for number in rounds:
            self._handle(ev.MergeArrived(number))

    def _handle(self, event: ev.Event, carried: Passage | None = None) -> None:
        for instruction in self._tuned.handle(event, self._now(), carried):
            self._perform(instruction)

    def _perform(self, instruction: ins.Instruction) -> None:
        match instruction:
            case ins.SendActivation(micro_batch):
                self._send(+1, m.Activation(micro_batch=micro_batch), self._to_send.pop(("activation", micro_batch, 0)))
            case ins.SendGradient(micro_batch, snapshot_round, norm_sq):
                passage = self._tuned.passage(micro_batch)
                gradient = m.Gradient(
                    micro_batch=micro_batch,
                    snapshot_round=snapshot_round,
                    norm_sq=norm_sq,
                    queued_s=passage.queued_s,
                    busiest_s=passage.busiest_s,
                )
                self._send(-1, gradient, self._to_send.pop(("gradient", micro_batch, 0)))
            case ins.SendGlobalNorm(update, norm_sq):
                self._send(+1, m.GlobalNorm(update=update, norm_sq=norm_sq))
            case ins.SendEvaluation(evaluation, batch, batches):
                head = m.EvaluationActivation(evaluation=evaluation, batch=batch, batches=batches)
                self._send(+1, head, self._to_send.pop(("evaluation", evaluation, batch)))
            case ins.CreditEvaluation(evaluation, batch):
                self._send(-self.setup.index, m.EvaluationCredit(evaluation=evaluation, batch=batch))
            case ins.ReportEvaluation(evaluation):
                self._reports.evaluated(evaluation, self.compute.evaluation_sums(evaluation))
            case ins.ReportDrained(micro_batches, updates):
                self._reports.tell(m.Drained(micro_batches=micro_batches, updates=updates))
            case ins.ReportRoundsFinished(up_to):
                if up_to == self._final_round:
                    self.rounds.adopt_anchor()  # nothing computes: the machine reports this only when idle
                    self.compute.weights_moved()
                    self._send_parcels()
                self._reports.tell(m.RoundsFinished(up_to=up_to, spent=self._reports.spent()))
            case ins.Fail(reason):
                raise RunFailed(reason)
            case _:
                self._executor.submit(instruction, self._tasks.task(instruction))

    def _take_finished(self, finished: ComputeFinished) -> None:
        if finished.error is not None:
            raise finished.error
        self._reports.computations += 1
        if finished.took is not None:
            self.machine.ledger.computed(*finished.took)
        self._send_parcels()  # before whatever of this computation is sent
        match finished.instruction:
            case ins.RunForward(micro_batch):
                self._to_send["activation", micro_batch, 0] = finished.result
                self._handle(ev.ForwardFinished(micro_batch))
                self._to_send.pop(("activation", micro_batch, 0), None)  # the last stage sends none
            case ins.RunBackward(micro_batch):
                self._to_send["gradient", micro_batch, 0], norm_sq = finished.result
                self._tell_tried()
                self._handle(ev.BackwardFinished(micro_batch, norm_sq))
                self._to_send.pop(("gradient", micro_batch, 0), None)  # the first stage sends none
            case ins.RunInputGradients(micro_batch):
                self._to_send["gradient", micro_batch, 0], _ = finished.result
                self._handle(ev.InputGradientsFinished(micro_batch))
            case ins.RunWeightGradients(micro_batch):
                self._handle(ev.WeightGradientsFinished(micro_batch))
            case ins.RunUpdate(update):
                (lr, losses), spent = finished.result, self._reports.spent()
                staleness = self.compute.tied.staleness(update, self.machine.group_staleness)
                self._reports.tell(m.Updated(update=update, staleness=staleness, losses=losses, lr=lr, spent=spent))
                self._handle(ev.UpdateFinished(update))
            case ins.TakeSnapshot(number):
                self._snapshots[number] = self.machine.version
                self._reports.tell(m.ContributionFinishedMessage(round=number, update=self.machine.version))
                self.rings.contribute(number, finished.result)
                self._measure_averaging()
                self._reports.round_is(number, "in flight")
                self._handle(ev.ContributionFinished(number))
            case ins.ApplyMerge(number):
                self.rounds.release(number)
                self._snapshots = {round_: made for round_, made in self._snapshots.items() if round_ >= number}
                self._merged(number, finished.result)
                self._handle(ev.MergeFinished(number))
            case ins.RunEvaluation(evaluation, batch):
                self._to_send["evaluation", evaluation, batch] = finished.result
                self._handle(ev.EvaluationForwardFinished(evaluation, batch))
                self._to_send.pop(("evaluation", evaluation, batch), None)

    def _merged(self, number: int, state: list[StateFile]) -> None:
        self._reports.tell(m.RoundMerged(round=number))
        self._reports.round_is(number, None)
        if number in self._tasks.saving:
            self._tasks.saving.discard(number)
            self.rounds.sending.begin(number, state)

    def _tell_tried(self) -> None:
        """Say, once, whether this stage's backward can be split."""
        splitter = self.compute.splitter
        if self._split_tried or splitter is None or not splitter.tried:
            return
        self._split_tried = True
        if splitter.refused is None:
            self._tuned.may_split()
        else:
            self._reports.tell(m.BackwardSplit(splits=False, refused=splitter.refused))

    def _send(self, step: int, message: Message, tensors: Tensors = ()) -> None:
        self._sends.send(self.setup.neighbour(step), message, tensors)

    def _send_parcels(self) -> None:
        """Send the messages about tied parameters."""
        for parcel in self.compute.tied.parcels():
            self._send(parcel.step, parcel.message, parcel.tensors)

    def _measure_averaging(self) -> None:
        self.compute.peaks.saw("averaging", self.rounds.memory_bytes)
