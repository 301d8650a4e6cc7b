"""The state machine of a run: its phases from training to the last evaluation. Pure.

In: messages of the stages, and the time. Out: instructions for the driver, such as messages to send, or a checkpoint
that begins. `RoundOwner` decides when a round opens and is committed (design §7); this module decides when the run
ends, evaluates and saves.

A cluster that loses a stage leaves the run, and the others go on: their rings become smaller in the next epoch of
membership, and what the lost cluster had not yet averaged is lost. It may join again: then it follows the rounds until
its stages hold the anchor (newcomers.py). The run ends where no cluster is left that trains.

    TRAINING ──stop──► DRAINING ──all drained──► FINISHING ──last round merged and saved──► EVALUATING ──► DONE
"""

from collections.abc import Mapping
from typing import Literal

from ravnest.driver import instructions as ins
from ravnest.driver.accounts import RunShape, SampleAccounts
from ravnest.driver.evaluating import Evaluations
from ravnest.driver.handed_progress import HandedProgress
from ravnest.driver.roster import Roster
from ravnest.driver.run_rings import rounds_resumed
from ravnest.driver.saving import Saving
from ravnest.driver.standing import Standing
from ravnest.errors import NodeLost, RunFailed, WrongMessage
from ravnest.pipeline import stage_name, stage_place
from ravnest.stage import donor_messages as dm
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import state_messages as sm
from ring_allreduce import rounds as r
from ring_allreduce.transport import Message


class RunControl:
    """The course of one run: `handle`, `tick` and `stop` tell it what happens, and return what is to be done."""

    def __init__(self, shape: RunShape, rounds: r.RoundOwner, standing: Standing | None = None) -> None:
        """`rounds` owns rings that are named by their numbers: the plan's rings, then those of averaged copies.
        `standing`: where the session stands that another driver has begun (taking_over.py)."""
        self._shape = shape
        self.rounds = rounds
        begun = {name: shape.clusters[name] for name in (standing or shape).clusters}
        self.clusters = Roster(begun, {} if standing is None else standing.contributed)
        """The clusters that are not lost."""
        self.accounts = SampleAccounts(shape, standing)
        """How much each cluster has made, and how much of it is averaged."""
        self._rounds_finished: dict[str, int] = {}
        """By stage: the newest round that it has finished."""
        self._handed = HandedProgress(shape, self.accounts)
        self._saving = Saving(shape.start_samples, shape.evaluate_every)
        self._save_again = False
        """Whether the last checkpoint of the run was given up."""
        self._evaluations = Evaluations(shape.evaluators, shape.start_samples, shape.evaluate_every)
        self._last_round = 0
        self._abandon = False
        self.stopped_early = False
        """Whether an order to stop has ended the run before the job's own `stop`, or kept it from its evaluation."""
        self.begins_again: str | None = None
        """Why the run is saved and begins again then: no cluster is left that would train on. None where one is."""
        self.phase = ins.RunPhase.TRAINING
        if standing is not None:
            self._evaluations.go_on(standing.evaluation, self.samples)

    def bring_together(self) -> list[ins.Instruction]:
        """Begin an epoch with the stages of a session that another driver has begun."""
        return self._follow(self.rounds.begin())

    @property
    def samples(self) -> int:
        """Samples that the fleet has trained on, earlier sessions of the run included."""
        return self.accounts.samples

    @property
    def updates(self) -> Mapping[str, int]:
        """Each cluster's updates so far; of a lost cluster, those that were averaged."""
        return self.accounts.updates

    @property
    def rounds_committed(self) -> int:
        """How many rounds were committed in this session."""
        return self.rounds.committed

    @property
    def saving(self) -> bool:
        """Whether stages are still sending their state for a checkpoint."""
        return self._saving.under_way

    @property
    def resting(self) -> frozenset[str]:
        """The clusters that may rightly compute nothing now: those that wait for a round, have drained, or join."""
        if self.phase not in (ins.RunPhase.TRAINING, ins.RunPhase.DRAINING):
            return frozenset(self.clusters.names)
        awaited = self.rounds.committed + 1
        return self.clusters.resting(awaited if awaited <= self.rounds.opened else None)

    @property
    def stopping(self) -> bool:
        """Whether the run is coming to its end, or has come to it, and does not begin again."""
        return self.phase is not ins.RunPhase.TRAINING and self.begins_again is None

    def begin_again(self, reason: str) -> list[ins.Instruction]:
        """All clusters that train are leaving. What they hold is saved, and then the run begins again from there."""
        self.begins_again = self.begins_again or reason
        return self.stop(evaluate=False)

    def stop(self, *, evaluate: bool) -> list[ins.Instruction]:
        """End the run: drain, average one last round, save; with `evaluate` the anchor is evaluated afterwards."""
        self._abandon = self._abandon or not evaluate
        if self.phase is not ins.RunPhase.TRAINING:
            return []
        self.stopped_early = not evaluate
        self._handed.stay(self.clusters.leaving)
        self.clusters.leaving.clear()  # all of them finish the last round together
        self.phase = ins.RunPhase.DRAINING
        out: list[ins.Instruction] = [ins.EnterPhase(self.phase)]
        out += [ins.SendToStage(first, m.Drain()) for first in self.clusters.first_stages]
        for name in self.clusters.newcomers.names:  # it has nothing to give, and nobody waits for it any more
            out += [ins.SendToStage(stage_name(name, 0), m.Stop())]
            out += self.lost(stage_name(name, 0), "the run ends before it has begun to train")
        return out

    def tick(self, elapsed_s: float) -> list[ins.Instruction]:
        """Stop the run when its time is over. `elapsed_s` counts from the beginning of training."""
        limit_s, late = self._shape.stop_s, [r.ReturnGivenUp(name) for name in self.clusters.overdue(elapsed_s)]
        out = [each for event in late for each in self._follow(self.rounds.handle(event, 0.0))]
        return out + (self.stop(evaluate=True) if limit_s is not None and elapsed_s >= limit_s else [])

    def ask(self, what: Literal["checkpoint", "evaluate"]) -> list[ins.Instruction]:
        """A user wants an evaluation, or a checkpoint: of the next round, which opens where none is under way."""
        (self._evaluations if what == "evaluate" else self._saving).ask()
        idle = self.phase is ins.RunPhase.TRAINING and self.rounds.opened == self.rounds.committed
        return self._follow(self.rounds.handle(r.RoundRequested(), 0.0)) if idle and what == "checkpoint" else []

    def handle(self, sender: str, message: Message) -> list[ins.Instruction]:
        """Take a message of the stage `sender`. Raises WrongMessage for one that contradicts the state of the run."""
        cluster, index = stage_place(sender)
        if cluster not in self.clusters:
            return []
        match message:
            case m.Updated() if sender == self.clusters.stages_of(cluster)[-1]:
                # Drained may have come earlier, because another stage sends it.
                self.accounts.updated(cluster, message.update + 1)
                return self._after_update(cluster)
            case m.ContributionFinishedMessage():
                _require(message.round <= self.rounds.opened, sender, message)
                self.accounts.snapshot(message.round, cluster, message.update)
                self.clusters.gave(sender, message.round)
                return []
            case m.StageStarted():
                self.clusters.newcomers.holds(sender)
                return self._admit()
            case m.RingFinishedMessage():
                event = r.MemberFinished(message.round, sender, str(message.ring), message.epoch)
                return self._follow(self.rounds.handle(event, 0.0)) + self._let_go()
            case em.RoundsHeld():
                held = r.MemberHeld(message.epoch, sender, tuple((str(ring), n) for ring, n in message.holding))
                return self._follow(self.rounds.handle(held, 0.0)) + self._let_go()
            case dm.ProgressTaken():
                return self._let_go() if self._handed.taken(sender, message) else []
            case m.Drained():
                drains = self.phase is ins.RunPhase.DRAINING or cluster in self.clusters.leaving
                _require(drains and index == 0 and cluster not in self.clusters.drained, sender, message)
                self.clusters.drained[cluster] = message
                self.accounts.drained(cluster, message.updates)
                out = self._count(cluster)  # which may open a round
                out += self.clusters.finish_rounds(cluster, self.rounds.opened, final=False)
                return out + self._when_all_drained() + self._let_go()
            case m.RoundsFinished():
                _require(cluster in self.clusters.drained and message.up_to <= self.rounds.opened, sender, message)
                self._rounds_finished[sender] = message.up_to
                return self._when_finished()
            case sm.StateSent():
                _require(self._saving.expects(message.round), sender, message)
                whole = [ins.CommitCheckpoint(message.round)] if self._saving.sent(sender, message.round) else []
                return [*whole, *self._admit(), *self._when_finished(), *self._let_go()]
            case m.EvaluationFinished():
                if self._evaluations.is_of_before(message.evaluation):
                    return []  # another driver has asked for it
                expected = self._evaluations.is_of(cluster, message.evaluation)
                _require(expected and sender == self.clusters.stages_of(cluster)[-1], sender, message)
                return self._evaluated(message)
        return []

    def join(self, cluster: str, members: Mapping[str, tuple[str, ...]]) -> list[ins.Instruction]:
        """The processes of a cluster that had been lost are there again, and follow the rounds from now on.

        `members` has its stages, and the rings of each. Nothing happens where the run is about to end.
        """
        if self.phase is not ins.RunPhase.TRAINING or cluster in self.clusters:
            return []
        self.clusters.add(cluster, len(members))
        return self._follow(self.rounds.handle(r.ClusterJoined(cluster, members), 0.0))

    def leave(self, cluster: str, reason: str) -> list[ins.Instruction]:
        """The cluster is to leave with notice: it drains, what it has made is averaged, and then it is gone.

        Nothing happens where it leaves already, no other cluster stays that trains, or the run is about to end.
        """
        if self.phase is not ins.RunPhase.TRAINING or cluster not in self.clusters or cluster in self.clusters.leaving:
            return []
        if cluster in self.clusters.newcomers:  # it has made nothing
            return [ins.SendToStage(stage_name(cluster, 0), m.Stop()), *self.lost(stage_name(cluster, 0), reason)]
        if self.clusters.staying == [cluster]:
            return []
        self.clusters.leaving[cluster] = reason
        return [ins.SendToStage(stage_name(cluster, 0), m.Drain()), *self._let_go()]

    def _let_go(self) -> list[ins.Instruction]:
        """Let clusters go that leave, whose samples are in the anchor or with another cluster. Others get a round."""
        out: list[ins.Instruction] = []
        for name in () if self.phase is not ins.RunPhase.TRAINING or self.saving else tuple(self.clusters.leaving):
            stage, drained = stage_name(name, 0), name in self.clusters.drained
            if (said := self._handed.goes(name, drained=drained)) is not None:
                out += [*said, ins.SendToStage(stage, m.Stop()), *self.lost(stage, self.clusters.leaving[name])]
                continue
            out += self._handed.hand_on(name, self.clusters, self.rounds.rings)
            if drained and self.rounds.opened == self.rounds.committed:
                out += self._follow(self.rounds.handle(r.RoundRequested(), 0.0))
        return out

    def checkpoint_written(self, round_: int) -> list[ins.Instruction]:
        """The checkpoint of a round is on the disk: newcomers that wait for it get their state from there."""
        at = self.accounts.goes_on_at
        return [ins.HandOver(name, round_, at(name)) for name in self.clusters.newcomers.written(round_)]

    def _admit(self) -> list[ins.Instruction]:
        """Let clusters train whose stages all hold the anchor. A checkpoint under way has none of their state."""
        out: list[ins.Instruction] = []
        for name in () if self._saving.under_way else self.clusters.newcomers.ready:
            self.clusters.newcomers.remove(name)
            order = em.TrainFrom(round=self.rounds.opened, version=self.accounts.begins(name))
            sent = (ins.SendToStage(stage, order) for stage in self.clusters.stages_of(name))
            out += [ins.RecordClusterTrains(name, order.round), *sent]
        return out

    def lost(self, stage: str, reason: str, *, stands_by: bool = True, spoils: bool = False) -> list[ins.Instruction]:
        """The stage is dead or silent: its cluster leaves the run. Raises NodeLost where no other cluster trains.

        `stands_by`: the cluster's other stages may keep their state, as far as the run has them stand by. `spoils`:
        MemberLost's.
        """
        cluster, _ = stage_place(stage)
        if cluster not in self.clusters or self.phase is ins.RunPhase.DONE:
            return []
        if not set(self.clusters.training) - {cluster}:
            raise NodeLost(reason, stage)
        asked = cluster == self._evaluations.by
        out = self._drop(cluster, stage, reason, stands_by=stands_by and self._shape.stands_by)
        out += self._follow(self.rounds.handle(r.MemberLost(stage, reason, spoils, self.clusters.awaits(cluster)), 0.0))
        if asked:
            self._evaluations.end()
            # A run that is about to end does not wait for the weights of one more cluster on the way.
            out += self._evaluate() if self.phase in (ins.RunPhase.TRAINING, ins.RunPhase.EVALUATING) else []
        if self.phase is ins.RunPhase.TRAINING and not self.clusters.staying:
            out += self.begin_again(reason)
        return out + self._admit() + self._when_all_drained() + self._when_finished()

    def _drop(self, cluster: str, stage: str, reason: str, *, stands_by: bool) -> list[ins.Instruction]:
        """Forget a cluster, and whatever waits for it."""
        stages = self.clusters.stages_of(cluster)
        trained, others = cluster not in self.clusters.newcomers, tuple(each for each in stages if each != stage)
        left = self.clusters.remove(cluster) == reason
        self._handed.lost(cluster)
        samples, going_on = self.accounts.dropped(cluster), tuple(self.clusters.training)
        keep = others if stands_by and trained and not left and self.phase is ins.RunPhase.TRAINING else ()
        order = em.StandBy(epoch=self.rounds.epoch + 1) if keep else m.Stop()
        lost = ins.RecordClusterLost(cluster, stage, reason, samples, going_on, left, keep)
        out: list[ins.Instruction] = [lost if trained else ins.RecordJoinFailed(cluster, stage, reason)]
        out += [ins.SendToStage(other, order) for other in others]
        if not trained:
            return out
        given_up = self._saving.abandon(stages, self.samples)
        self._save_again = self._save_again or self._last_round in given_up
        self.clusters.newcomers.given_up(given_up)
        return out + [ins.AbandonCheckpoint(round_) for round_ in given_up]

    def _count(self, cluster: str) -> list[ins.Instruction]:
        """Tell the owner of the rounds how many samples the cluster has made by now."""
        return self._follow(self.rounds.handle(r.SamplesReported(cluster, self.accounts.made_by(cluster)), 0.0))

    def _after_update(self, cluster: str) -> list[ins.Instruction]:
        out = self._count(cluster)
        if self.phase is not ins.RunPhase.TRAINING:
            return out
        if self._shape.stop_samples is not None and self.samples >= self._shape.stop_samples:
            return out + self.stop(evaluate=True)
        return out + (self._evaluate() if self._evaluations.due(self.samples) else [])

    def _evaluate(self) -> list[ins.Instruction]:
        if not self._shape.held_out_batches:
            return []
        cluster = self._evaluations.begin(self.clusters.staying or self.clusters.training, self.samples)
        order = m.Evaluate(evaluation=self._evaluations.number, batches=self._shape.held_out_batches)
        return [ins.SendToStage(stage_name(cluster, 0), order)]

    def _evaluated(self, message: m.EvaluationFinished) -> list[ins.Instruction]:
        final = self.phase is ins.RunPhase.EVALUATING
        self._evaluations.end()
        return [
            ins.RecordEvaluation(self._evaluations.samples, message, final),
            *(self._end() if final else self._when_finished()),
        ]

    def _follow(self, orders: list[r.OwnerInstruction]) -> list[ins.Instruction]:
        out: list[ins.Instruction] = []
        for order in orders:
            match order:
                case r.OpenRound(final=False):
                    out.append(ins.RecordRoundOpened(order.round, final=False))
                    for name in self.clusters.names:
                        if name in self.clusters.newcomers:
                            out += self.clusters.follow_rounds([name], self.rounds.opened)
                        elif name in self.clusters.drained:  # no gradient flows there that could carry the stamp
                            out += self.clusters.finish_rounds(name, self.rounds.opened, final=False)
                        else:
                            last = self.clusters.stages_of(name)[-1]
                            out.append(ins.SendToStage(last, m.RoundOpenedMessage(round=order.round)))
                case r.CommitRound():
                    out += self._commit(order.round)
                case r.Reform():
                    names, lost = self.clusters.newcomers.names, tuple(order.lost)
                    out.append(ins.ReformRings(order.epoch, order.rings, order.committed, lost, names))
                case r.Resume():
                    self.accounts.restarted(order.kept)
                    firsts = order.first_rounds.items()
                    out += [ins.SendToStage(to, rounds_resumed(order, first)) for to, first in firsts]
                    out.append(ins.EpochBegan(order.epoch, order.kept))
                    out += self.clusters.follow_rounds(self.clusters.newcomers.names, self.rounds.opened)
                    new = self.clusters.newcomers.resumed(order.first_rounds).items()
                    out += [ins.FindDonors(name, stages) for name, stages in new]
                # A lost cluster was dropped before the owner of the rounds heard of the loss.
                case r.LeaveOut() if stage_place(order.member)[0] in self.clusters:
                    said = f"{order.member} contradicts the state of the run: {order.reason}"
                    out += self.lost(order.member, said, stands_by=False)
                case r.FailRun():
                    raise RunFailed(order.reason)
        given = self._handed.give_on(self.rounds.opened)
        return [*out, *given, *(self._when_all_drained() if given else ())]

    def _commit(self, round_: int) -> list[ins.Instruction]:
        self._handed.committed(round_, self.accounts.snapshots.get(round_, ()))
        self.accounts.committed(round_)
        last = round_ == self._last_round
        due = self._saving.due(self.samples) or (self.clusters.newcomers.wait_for(round_) and not self.saving)
        save = last or (due and not self._last_round)
        out: list[ins.Instruction] = [ins.RecordRoundCommitted(round_, self.samples, self.accounts.averaged)]
        if save:
            out.append(self._begin_checkpoint(round_))
        for name in self.clusters.names:
            order = m.RoundCommittedMessage(round=round_, save=save and name not in self.clusters.newcomers)
            out += [ins.SendToStage(stage, order) for stage in self.clusters.stages_of(name)]
        return out

    def _begin_checkpoint(self, round_: int) -> ins.Instruction:
        stages = [stage for name in self.clusters.training for stage in self.clusters.stages_of(name)]
        self._saving.begin(round_, stages, self.samples)
        self.clusters.newcomers.saving(round_)
        updates = self.accounts.averaged
        lost = tuple(name for name in self.updates if name not in self.clusters.training)
        return ins.BeginCheckpoint(round_, self.accounts.samples_of(updates), updates, lost, self.accounts.unmade)

    def _when_all_drained(self) -> list[ins.Instruction]:
        waits = len(self.clusters.drained) < len(self.clusters.names) or self._handed.unsettled  # for the last round
        if self.phase is not ins.RunPhase.DRAINING or waits:
            return []
        self.phase = ins.RunPhase.FINISHING
        out: list[ins.Instruction] = [ins.EnterPhase(self.phase)]
        opens = self.rounds.handle(r.FinishRequested(), 0.0)  # the last round; the stages hear of it below
        self._last_round = self.rounds.opened
        out += [ins.RecordRoundOpened(self._last_round, final=True)] if opens else []
        opened = self._last_round
        return out + [e for name in self.clusters.names for e in self.clusters.finish_rounds(name, opened, final=True)]

    def _when_finished(self) -> list[ins.Instruction]:
        finished = all(self._rounds_finished.get(stage) == self._last_round for stage in self.clusters.stages)
        if self.phase is not ins.RunPhase.FINISHING or not finished or self.saving or self._evaluations.by is not None:
            return []
        if self._saving.arriving(self._last_round):
            return []  # what is under way of the first try would be taken for the second's
        if self._save_again:
            self._save_again = False
            again = em.SendState(round=self._last_round)
            sent = (ins.SendToStage(stage, again) for stage in self.clusters.stages)
            return [self._begin_checkpoint(self._last_round), *sent]
        if self._abandon or not self._shape.held_out_batches:
            self.stopped_early = self._abandon
            return self._end()
        self.phase = ins.RunPhase.EVALUATING
        return [ins.EnterPhase(self.phase), *self._evaluate()]

    def _end(self) -> list[ins.Instruction]:
        self.phase = ins.RunPhase.DONE
        return [ins.EnterPhase(self.phase), *(ins.SendToStage(stage, m.Stop()) for stage in self.clusters.stages)]


def _require(expected: bool, sender: str, message: Message) -> None:
    if not expected:
        raise WrongMessage(sender, f"sent {message}, which contradicts the state of the run")
