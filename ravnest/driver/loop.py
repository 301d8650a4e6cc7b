"""The driver's loop: it takes messages of the stages, and does what the control of the run says.

`RunControl` decides; the loop connects it with the transport, the ends of processes, the clock, the record of the run
and the collector of checkpoints. Everything that the loop waits for has a deadline in the `StageWatch`.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ravnest.driver import control as c
from ravnest.driver import instructions as ins
from ravnest.driver.checkpoint_collector import CheckpointCollector
from ravnest.driver.cluster_starts import Listening
from ravnest.driver.liars import LiarWatch
from ravnest.driver.loop_parts import LoopClock, Recovery, StageLinks
from ravnest.driver.node_requests import RunRequest
from ravnest.driver.observe.place_events import NodesSharedOutEvent, handed_on, replanned
from ravnest.driver.observe.record import RunRecord
from ravnest.driver.observe.trace import RunTrace
from ravnest.driver.ray.stage_actors import StageEnded
from ravnest.driver.run_rings import RunRings
from ravnest.driver.stage_watch import StageWatch
from ravnest.driver.standing import Standing
from ravnest.driver.taking_over import first_instructions
from ravnest.errors import Interrupted, NodeLost, RunFailed, WrongMessage
from ravnest.pipeline import stage_name, stage_place
from ravnest.recovery import MoveCluster, SharedOut, StartCluster, TryFailed
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ring_allreduce.transport import Delivery, Lane, Unacceptable

_FIGURES = m.Spans | m.MemoryPeaks | m.ImitationLateness | m.LinksUsed | m.StrangersRefused  # no progress by themselves
_POLL_S = 0.1
_NEWS_EVERY_S = 0.25
_LEAVE_S = 20.0


class DriverLoop:
    """Runs one session of a run from the moment the stages hold their state until they have all left."""

    def __init__(
        self,
        links: StageLinks,
        control: c.RunControl,
        watch: StageWatch,
        rings: RunRings,
        collector: CheckpointCollector,
        record: RunRecord,
        *,
        stop_wanted: Callable[[], bool],
        recovery: Recovery | None = None,
        trace: RunTrace | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stop_wanted` says whether the user wants an end; `recovery` starts lost clusters anew, and without it
        they stay out; `trace` takes the stages' timelines; `now` is the clock, in seconds."""
        self._endpoint, self._news, self._outbox = links.endpoint, links.ends, links.outbox
        self._control, self._watch = control, watch
        self._rings = rings
        self._collector = collector
        self._record = record
        self._stop_wanted = stop_wanted
        self._recovery = recovery
        self._liars = LiarWatch(lambda stage: stage_place(stage)[0])
        self._handed: set[str] = set()
        """The clusters whose state is on its way to them."""
        self._born: dict[str, int] = {}
        """By stage that was started anew: the epoch from which on messages are of its process."""
        self._trace = trace
        self._now = now
        self._times = LoopClock(now, record.notice).times
        self._stages, self._starting = set(record.stages), set(record.stages)
        self._next_alive_s = self._next_news_s = now()
        self._stopping = self._stop_asked = self._to_remember = False
        self._training_since_s: float | None = None
        self._remember: Callable[[], None] = recovery.remember if recovery is not None else lambda: None
        self._observe = recovery.starts.observe if recovery is not None else lambda instruction: None
        self._finished: dict[str, int] = {}  # stage → what it last said it had got done

    def run(self) -> None:
        """Loop until the run is over and its checkpoints are written.

        Raises RunFailed, or NodeLost, also where the run is to begin again from its last checkpoint (`begin_again`).
        Then the caller ends the processes. The disk ends a run only where it refuses that checkpoint, the result.
        """
        while self._control.phase is not ins.RunPhase.DONE or self._collector.busy:
            self.turn()
        self._farewell()
        if self._control.begins_again is not None and not self._stopping:
            raise NodeLost(self._control.begins_again)
        self._collector.require_last()  # the run's result is in it

    def go_on(self, standing: Standing, born: Mapping[str, int], early: list[Delivery]) -> None:
        """Begin where another driver has come to. `born`: see `_born`. `early`: what stages have said already."""
        self._training_since_s = self._times()[1] - standing.elapsed_s
        self._starting.clear()
        self._stages, self._born = set(self._control.clusters.stages), {**born}
        self._watch.only(self._stages)
        self._record.taken_over(standing)
        self._follow(first_instructions(self._control, standing))
        self._remember()
        for delivery in early:
            self._take(delivery)

    def turn(self) -> None:
        """One iteration of the loop, which waits up to 0.1 s for a message; `run` makes as many as it takes."""
        for delivery in self._endpoint.poll(_POLL_S):
            self._take(delivery)
        self._record.contributions(self._liars.lines())
        self._lose_liars()
        now_s, awake_s = self._times()
        self._outbox.flush()
        for path, round_ in self._written():
            self._record.checkpoint(path, round_)
            self._follow(self._control.checkpoint_written(round_))
        for stage, grant in self._collector.grants():
            if stage in self._stages:
                self._endpoint.send(stage, Lane.PIPELINE, grant)
        for round_, error in self._collector.refusals():
            self._control.clusters.newcomers.refused()
            self._record.checkpoint_refused(round_, str(error))
        if now_s >= self._next_alive_s:
            self._next_alive_s = now_s + m.ALIVE_EVERY_S
            for stage in self._stages:
                self._endpoint.send(stage, Lane.PIPELINE, m.Alive(sent_s=now_s))
        if now_s >= self._next_news_s:
            self._next_news_s = now_s + _NEWS_EVERY_S
            self._record.strangers(m.DRIVER, self._endpoint.stats.strangers.news(now_s))
            for end in self._news.ended():
                self._take_end(end)
            self._take_requests(awake_s)
        if self._control.phase is not ins.RunPhase.DONE:
            excused = self._collector.busy or self._training_since_s is None
            for stage, reason in self._watch.hung(awake_s, excused=excused, resting=self._control.resting):
                self._lose(stage, reason, stands_by=False)  # nobody knows for sure which of its stages it is
            for stage, reason in self._watch.silent(awake_s, excused=self._collector.busy):
                self._lose(stage, reason)
            for each in self._watch.suspicions():
                self._record.suspected(each, self._watch.node(each.stage))
        if self._recovery is not None and self._control.phase is ins.RunPhase.TRAINING:
            self._recover(self._recovery, awake_s)
        if (self._stop_asked or self._stop_wanted()) and not self._stopping:
            self._stopping = True
            self._record.stopping()
        if self._training_since_s is not None:
            elapsed_s = awake_s - self._training_since_s
            if self._stopping:
                self._follow(self._control.stop(evaluate=False))
            self._follow(self._control.tick(elapsed_s))
            self._record.tick(self._control, elapsed_s)
        if self._to_remember:  # a stage has contributed to a round, or nodes come or go
            self._to_remember = False
            self._remember()

    def _recover(self, recovery: Recovery, awake_s: float) -> None:
        """Start lost clusters anew, let them join, and send them their state."""
        recovery.starts.shadow(awake_s, trains=self._training_since_s is not None)
        rest_s = self._control.accounts.rest_s(awake_s - (self._training_since_s or awake_s))
        for news in recovery.starts.turn(self._rings, self._endpoint, self._control.rounds.epoch, awake_s, rest_s):
            match news:
                case TryFailed():
                    self._record.replacement_failed(news)
                case StartCluster():
                    self._control.accounts.expected(news.cluster, news.plan.share(news.cluster))
                    self._record.consists_of(news.cluster, list(self._rings.of_cluster(news.cluster)))
                    self._record.happened(replanned(news))
                case SharedOut():
                    self._record.happened(NodesSharedOutEvent(news.cluster, news.nodes, news.reason))
                case MoveCluster():
                    self._follow(self._control.leave(news.cluster, news.reason))
                case Listening():
                    self._join(news, awake_s)
        self._follow(recovery.anew(awake_s, rest_s))
        for cluster in recovery.donors.turn(awake_s):
            self._control.clusters.newcomers.without_donors(cluster)
        for cluster, reason in recovery.handover.turn():
            self._follow(self._control.lost(stage_name(cluster, 0), reason))

    def _join(self, news: Listening, awake_s: float) -> None:
        if self._trace is not None:
            self._trace.placed(news.nodes)
        for stage, setup in self._rings.of_cluster(news.cluster).items():
            self._born[stage] = setup.transport.epoch
            self._stages.add(stage)
            self._watch.add(stage, news.nodes[stage], awake_s)
        self._follow(self._control.join(news.cluster, self._rings.members(news.cluster)))

    def _take_requests(self, awake_s: float) -> None:
        if self._recovery is None or self._training_since_s is None:
            return
        self._record.notices(self._recovery.news())
        for request in self._recovery.requests():
            self._to_remember = True
            if isinstance(request, RunRequest):
                self._obey(request)
            elif request.kind == "leave" and self._recovery.arrivals.knows(request.node):
                self._follow(self._recovery.departures.asked(request, awake_s))
            else:
                self._recovery.arrivals.take(request, awake_s)

    def _obey(self, request: RunRequest) -> None:
        if request.kind == "stop_now":
            raise Interrupted("stopped at once, as it was asked to: --resume goes on from the last checkpoint, if any")
        self._stop_asked = self._stop_asked or request.kind == "stop"
        if request.kind == "checkpoint" or request.kind == "evaluate":
            self._follow(self._control.ask(request.kind))

    def _written(self) -> list[tuple[Path, int]]:
        try:
            return self._collector.written()
        except WrongMessage as error:
            self._lose(error.stage, str(error), stands_by=False)
            return []

    def _take(self, delivery: Delivery) -> None:
        if delivery.epoch < self._born.get(delivery.sender, 0):
            return  # of the process that had this name before
        try:
            self._act_on(delivery)
        except WrongMessage as error:
            self._lose(error.stage, str(error), stands_by=False)

    def _act_on(self, delivery: Delivery) -> None:
        (now_s, awake_s), opened = self._times(), self._control.rounds.opened
        if self._training_since_s is not None:
            self._record.at(awake_s - self._training_since_s)
        if self._recovery is not None and self._recovery.starts.take_of_spare(delivery, awake_s):
            return
        message = delivery.message
        if isinstance(message, Unacceptable):
            if delivery.sender not in self._control.clusters.stages:
                return  # its cluster has left the run
            raise WrongMessage(delivery.sender, f"sent what no stage sends: {message.reason}")
        progress = not isinstance(message, _FIGURES)
        if isinstance(message, m.Alive):
            progress = message.finished != self._finished.get(delivery.sender, 0)
            self._finished[delivery.sender] = message.finished
            self._outbox.got(delivery.sender, message.finished)
            if progress:
                self._watch.computed(delivery.sender, awake_s)
            if progress and self._recovery is not None and stage_place(delivery.sender)[0] in self._handed:
                self._recovery.starts.replacements.handing(stage_place(delivery.sender)[0], awake_s)
        self._watch.heard(delivery.sender, awake_s, progress=progress)
        if self._trace is not None:
            self._trace.draw(delivery.sender, message, now_s)
        if self._recovery is not None:
            self._recovery.donors.take(delivery.sender, message, awake_s)
        self._record.reported(delivery.sender, message)
        match message:
            case m.StageStarted():
                self._starting.discard(delivery.sender)
                self._record.started(delivery.sender, message)
                if not self._starting and self._training_since_s is None:
                    self._training_since_s = awake_s
                    for stage in self._control.clusters.first_stages:
                        self._endpoint.send(stage, Lane.PIPELINE, m.Go())
                    self._record.training()
                    self._remember()
            case sm.StatePiece():
                self._collector.take(delivery.sender, message, delivery.tensors)
            case em.ContributionsSeen() | em.MemberRefused() | m.RingFinishedMessage() if message.round <= opened:
                self._liars.saw(delivery.sender, message, self._rings.members_of(delivery.sender, message))
                self._lose_liars()  # before the round can be committed
            case sm.StateSent():
                self._collector.finish(delivery.sender, message)
            case m.Updated() if self._recovery is not None:
                self._recovery.slow.updated(delivery.sender, self._watch.node(delivery.sender), message, awake_s)
            case em.NoticeGiven() if self._recovery is not None:
                self._follow(self._recovery.departures.notice_of(delivery.sender, awake_s))
        if not isinstance(message, m.Alive | sm.StatePiece):
            self._follow(self._control.handle(delivery.sender, message))
        self._to_remember |= isinstance(message, m.ContributionFinishedMessage | em.NoticeGiven)

    def _follow(self, instructions: list[ins.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ins.SendToStage():
                    self._endpoint.send(instruction.peer, Lane.PIPELINE, instruction.message)
                case ins.EnterPhase():
                    self._record.phase(instruction.phase)
                    self._remember()  # before any stage drains
                case ins.RecordRoundOpened():
                    self._record.round_opened(instruction)
                case ins.RecordRoundCommitted():
                    self._record.round_committed(instruction)
                    self._liars.committed(instruction.round)
                    self._remember()  # before any stage hears of it
                case ins.BeginCheckpoint():
                    self._collector.begin(instruction)
                case ins.CommitCheckpoint():
                    self._collector.commit(instruction.round)
                case ins.AbandonCheckpoint():
                    self._collector.abandon(instruction.round)
                case ins.ReformRings():
                    for stage, message in self._rings.reform(instruction).items():
                        self._endpoint.send(stage, Lane.PIPELINE, message)
                    self._collector.reform(self._rings.training())
                case ins.RecordClusterLost():
                    silent_s = self._watch.silent_s(instruction.stage, self._times()[1])
                    self._record.cluster_lost(instruction, self._watch.node(instruction.stage), silent_s)
                    self._forget(instruction.cluster)
                    self._remember()
                    if self._recovery is not None and instruction.cluster not in self._liars.shut_out:
                        epoch, awake_s = self._control.rounds.epoch, self._times()[1]
                        self._stages |= self._recovery.starts.lost(instruction, epoch, awake_s)
                case ins.RecordProgressHandedOn():
                    self._record.happened(handed_on(instruction))
                case ins.RecordJoinFailed():
                    self._join_failed(instruction)
                case ins.FindDonors() | ins.HandOver() if self._recovery is not None:
                    self._handed.add(instruction.cluster)
                    self._recovery.starts.replacements.handing(instruction.cluster, self._times()[1])
                    if isinstance(instruction, ins.FindDonors):
                        self._recovery.donors.find(instruction, self._times()[1])
                    else:
                        self._recovery.handover.order(instruction, self._rings.of_cluster(instruction.cluster))
                case ins.RecordClusterTrains() if self._recovery is not None:
                    self._handed.discard(instruction.cluster)
                    self._rings.trains(instruction.cluster)
                    self._recovery.donors.trains(instruction.cluster)
                    self._collector.reform(self._rings.training())
                    replaced = self._recovery.starts.replacements.trains(instruction.cluster, self._times()[1])
                    self._record.cluster_replaced(replaced, instruction.round, self._rings.plan)
                    self._remember()
                case ins.RecordEvaluation():
                    self._record.evaluated(instruction)
            self._observe(instruction)

    def _join_failed(self, failed: ins.RecordJoinFailed) -> None:
        """A cluster has left again before it trained. What is left of its processes ends."""
        self._forget(failed.cluster)
        if (recovery := self._recovery) is None:
            return
        recovery.handover.forget(failed.cluster)
        if self._control.phase is not ins.RunPhase.TRAINING:
            return
        for said in recovery.starts.failed(failed.cluster, failed.reason, self._rings, self._times()[1], failed.stage):
            self._record.replacement_failed(said)

    def _forget(self, cluster: str) -> None:
        """Nothing is expected any more of the stages of a cluster that has left."""
        self._handed.discard(cluster)
        if self._recovery is not None:
            self._recovery.donors.lost(list(self._rings.of_cluster(cluster)))
        for stage in self._rings.of_cluster(cluster):
            self._stages.discard(stage)
            self._watch.forget(stage)

    def _lose_liars(self) -> None:
        for stage, reason, spoils in self._liars.found():
            if self._recovery is not None and stage_place(stage)[0] in self._liars.shut_out:
                self._recovery.departures.lied(stage, reason)
            self._lose(stage, reason, stands_by=False, spoils=spoils)

    def _lose(self, stage: str, reason: str, *, stands_by: bool = True, spoils: bool = False) -> None:
        """The stage is dead, silent or of no use. Raises NodeLost where the run cannot go on without its cluster.

        `stands_by`: the cluster's others may keep their state. `spoils`: MemberLost's.
        """
        if self._training_since_s is None:
            raise NodeLost(reason, stage)
        self._stages.discard(stage)
        self._endpoint.disconnect([stage])
        if stands_by and self._recovery is not None and self._recovery.starts.returns(stage):
            self._control.clusters.returns(stage_place(stage)[0])
        self._follow(self._control.lost(stage, reason, stands_by=stands_by, spoils=spoils))

    def _take_end(self, end: StageEnded) -> None:
        if end.unheard and self._training_since_s is not None and self._control.phase is not ins.RunPhase.DONE:
            self._watch.unwatched(end.stage, end.reason, self._times()[1])
            return  # its process needs no actor to train
        self._stages.discard(end.stage)
        if self._control.phase is ins.RunPhase.DONE or end.stage not in self._control.clusters.stages:
            if self._recovery is not None:
                self._recovery.starts.ended(end.stage)
            return  # the driver has all else that it needs of the stage
        if end.outcome is None:
            self._lose(end.stage, f"{self._watch.called(end.stage)} died: {end.reason}")
        elif end.outcome.error is not None:
            details = self._record.write_log(end.stage, end.outcome.details or end.outcome.error)
            said = f"{end.stage}: {end.outcome.error} ({details})"
            if stage_place(end.stage)[0] in self._control.clusters.training and not end.outcome.of_machine:
                raise RunFailed(said)  # the job's own code would fail on every machine
            self._lose(end.stage, said)  # else the others do without it
        else:
            self._lose(end.stage, f"{self._watch.called(end.stage)} left before the run was over")

    def _farewell(self) -> None:
        """Wait up to 20 s for the stages to leave, and take what they had not told. The results are saved already."""
        deadline_s, heard = self._times()[1] + _LEAVE_S, True
        while (heard or self._stages & set(self._control.clusters.stages)) and self._times()[1] < deadline_s:
            for each in (last := self._endpoint.poll(_POLL_S)):
                if self._trace is not None:
                    self._trace.draw(each.sender, each.message, self._now())
                if isinstance(each.message, m.MemoryPeaks):
                    self._record.reported(each.sender, each.message)
            self._stages -= {end.stage for end in self._news.ended()}
            heard = bool(last)
