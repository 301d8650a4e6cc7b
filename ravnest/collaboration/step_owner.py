"""When a step opens, who takes part, and when it is committed: the backbone's state machine. Sans-I/O.

In: what peers said, as events with the time at which they came. Out: instructions. A step goes like this:

    collecting   peers compute and report; the batch is estimated (progress.py)
    open         each peer was told at how many samples to stop; what it sends is added to the step's sum
    committed    the sum holds the target batch: everyone applies the mean, and the next step begins

A peer that is lost, late or refused while a step is open costs what it had not sent. If too little is left the step is
collected further: all go on with the same weights, and what has been added stays. So a batch is never smaller than the
target, and no peer can hold a step up for longer than `patience_s`.

A step is opened up to AHEAD_S before its batch is full, so that nobody computes on while the word to stop travels.
Where whole steps are shorter than that, each is opened when the one before is committed, by the rates that are known
then: everyone's part is known before its first sample, however old reports are beside a step. Who joins while a step
is open waits for the next one, or for the word that too little has come.

Nor can it do so again and again. Who was counted on and has not sent in time what was asked of it is doubted for some
time (promises.py). What a doubted peer reports opens no step for others, and nobody waits for it: it is asked by itself
for what it has, while the others compute on, and counts once that has come. What comes unasked or too late counts where
it makes the batch hardly larger.

With `in_parts` other machines add up parts of the gradient. All make their means before the step is committed; if one
of them is lost before that, all that was given to the step comes again.

With `delayed` peers compute the next step's batch while a step is open (peer_steps.py). Each is told with the opening
how much of it it may compute, so that the batch is met where averaging takes longer than computing. If too little
comes of a step, as many as are needed give what they have of the next batch. When a step is committed the next one
opens at once, if its batch is full by then, or before a word that follows the average would come; else all are told to
go on, without a bound.
"""

import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace

from ravnest.collaboration.progress import MOST_OVER, Report, donors, full_at_s, parts_of_batch, quotas, trials
from ravnest.collaboration.promises import Asked, Promises
from ravnest.collaboration.step_events import (
    BegunAgain,
    CollectOn,
    CommitStep,
    ContributionCame,
    ContributionRefused,
    Event,
    Instruction,
    MakeMeans,
    MeansMade,
    OpenStep,
    PeerBecameReady,
    PeerLeft,
    ProgressCame,
    PutOut,
    TimePassed,
)

__all__ = [
    "BegunAgain",
    "CollectOn",
    "CommitStep",
    "ContributionCame",
    "ContributionRefused",
    "Event",
    "Instruction",
    "MakeMeans",
    "MeansMade",
    "OpenStep",
    "PeerBecameReady",
    "PeerLeft",
    "ProgressCame",
    "PutOut",
    "StepOwner",
    "TimePassed",
]

MOST_REFUSED = 3
"""A peer whose contributions were refused so often is put out."""

AHEAD_S = 1.0
"""A step is opened so long before its batch is full, once everyone who computes has said how far it is."""

MOST_UNASKED = 0.1
"""What nobody waits for counts where it makes a batch no larger than by this part of it."""

LOOK_AHEAD_S = 60.0
LEAST_WAIT_S = 0.01


class StepOwner:
    """Owns the number of the step, and what is known of the peers' progress in it."""

    def __init__(self, target_batch: int, step: int = 0, *, delayed: bool = False) -> None:
        """`step`: the number of steps that have been made."""
        self.target_batch = target_batch
        self.step = step
        self._delayed = delayed
        self._ready: set[str] = set()
        self._reports: dict[str, Report] = {}
        self._next: dict[str, Report] = {}  # of the step after this one
        self._most_next: Mapping[str, int] = {}
        self._last: dict[str, Report] = {}  # of any step
        self._given: Counter[str] = Counter()
        self._told: Counter[str] = Counter()  # how often each peer was told to send what it has of this step
        self._came_of: Counter[str] = Counter()  # how many contributions of it are in the sum
        self._awaited: set[str] | None = None  # None: collecting
        self._given_up: set[str] = set()  # who was waited for in this step, and is no more
        self.in_parts = False
        """Whether other machines add up parts of this step: their means have to be there before it is committed."""
        self.averages_take_s = 0.0
        """So long the last average was on its way to everyone: a word that follows it comes behind it. 0: none was yet,
        so nobody knows."""
        self._averaging = False
        self._beside_s = 0.0  # so long averages took when the step was opened: who is lost takes the next one never
        self._opened_s = self._full_s = 0.0  # when the step had to be opened at the latest; its batch was to be made
        self._refused: Counter[str] = Counter()
        self._promises = Promises()

    @property
    def open(self) -> bool:
        """Whether the step is open, and no longer collected."""
        return self._awaited is not None and not self._averaging

    @property
    def peers(self) -> frozenset[str]:
        """The peers that compute."""
        return frozenset(self._ready)

    @property
    def patience_s(self) -> float:
        """How long a contribution may take from the opening on, or, if that was early, from AHEAD_S before the batch is
        to be made. Where an average travels beside it, words for it are behind that."""
        patience_s = self._promises.patience_s
        return patience_s + min(self._beside_s, patience_s) if self._delayed else patience_s

    @property
    def needed(self) -> int:
        """Samples that are still missing from the sum."""
        return max(0, self.target_batch - sum(self._given.values()))

    def counts(self, peer: str, step: int, samples: int) -> bool:
        """Whether a contribution of this peer to that step counts: one each time that the step was opened for it, until
        it has given a whole batch by itself. What nobody waits for, as it comes too late or was not asked for, counts
        where the batch is not much larger with it and with what is waited for; or, if it was waited for, where it makes
        the batch whole by itself."""
        if self._averaging or peer not in self._ready or self._came_of[peer] >= self._told[peer]:
            return False
        if self._awaited is not None and peer not in self._awaited:
            promised = sum(self._promises.samples(one) for one in self._awaited)
            given, most = sum(self._given.values()) + samples, (1.0 + MOST_UNASKED) * self.target_batch
            fills = peer in self._given_up and self.target_batch <= given <= most
            if given + promised > most and not fills:
                return False
        return step == self.step and self._given[peer] < self.target_batch

    def next_due_s(self, now_s: float) -> float | None:
        """When TimePassed is due at the latest; None while only messages can change anything."""
        if self._averaging:
            return None
        if self._awaited is not None:
            return self._opened_s + self.patience_s
        asked = self._promises.is_asked
        waiting = {peer: one for peer, one in self._reports.items() if not asked(peer, self.step, now_s)}
        full_s = full_at_s(waiting, self.needed, now_s, LOOK_AHEAD_S) if waiting else None
        return None if full_s is None else max(full_s - self._ahead_s(waiting, now_s), now_s + LEAST_WAIT_S)

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Return what follows from an event. One that is about a step that is over changes nothing."""
        match event:
            case PeerBecameReady(peer=peer, step=step):
                # Who is one step behind takes that step's average next: where steps are short, it may never be less.
                if self.step - 1 <= step <= self.step + self._delayed:
                    self._ready.add(peer)
            case ProgressCame(peer=peer) if peer in self._ready:
                report = Report(event.samples, event.samples_per_s, event.micro_batch, now_s, event.every_s)
                self._last[peer] = report
                if event.step == self.step:
                    self._reports[peer] = report
                    self._next.pop(peer, None)
                    return [*self._holds(peer), *self._decide(now_s)]
                elif event.step == self.step + self._delayed:
                    self._next[peer] = replace(report, most=self._most_next.get(peer, math.inf))
            case ContributionCame(peer=peer) if peer in self._ready:
                alone = self._came(event, now_s) and event.step == self.step
                return [*self._decide(now_s), *self._goes_on(peer, alone)]
            case ContributionRefused(peer=peer):
                alone = self._promises.refused(peer, self.step)
                self._sent(peer)
                self._refused[peer] += 1
                if self._refused[peer] >= MOST_REFUSED:
                    self._forget(peer)
                    return [PutOut(peer, event.reason), *self._decide(now_s)]
                return [*self._decide(now_s), *self._goes_on(peer, alone)]
            case PeerLeft(peer=peer):
                self._forget(peer)
            case MeansMade() if self._averaging:
                self._averaging = False
                return self._commit(now_s)
            case BegunAgain():
                self._begin_again(now_s)
            case _:
                pass
        return self._decide(now_s)

    def _holds(self, peer: str) -> list[Instruction]:
        """Who has come since the step was opened was told nothing, and would make up to a whole batch that counts only
        if others fail, and then is too much. It sends what it has, which may be nothing, and waits."""
        if self._delayed or self._awaited is None or self._told[peer]:
            return []
        self._told[peer] += 1
        return [OpenStep(self.step, {peer: 0})]

    def _goes_on(self, peer: str, alone: bool) -> list[Instruction]:
        """Who alone was asked, and has sent, computes on with the others."""
        return [CollectOn(self.step, peer)] if alone and self._awaited is None else []

    def _decide(self, now_s: float) -> list[Instruction]:
        if self._averaging:
            return []
        if self._awaited is None:
            return self._open(now_s)
        if self._awaited and now_s < self._opened_s + self.patience_s:
            return []
        for peer in self._awaited:
            self._promises.broke(peer)
        self._given_up |= self._awaited
        self._awaited = None
        if self.needed:
            if taken := self._take_from_next(now_s):
                return taken
            self._reports, self._next = {}, {}  # what they have not sent they report anew
            return [CollectOn(self.step)]
        if self.in_parts:
            self._averaging = True
            return [MakeMeans(self.step, dict(self._given))]
        return self._commit(now_s)

    def _begin_again(self, now_s: float) -> None:
        """What was given comes again, and is waited for where the step was open."""
        if self._averaging or self._awaited is not None:
            self._awaited = ((self._awaited or set()) | set(self._given)) & self._ready
            self._opened_s = now_s
            for peer in self._awaited & set(self._given):
                again = Asked(self.step, self._given[peer], now_s + self.patience_s, alone=False)
                self._promises.ask(peer, again)
        self._averaging, self.in_parts, self._given, self._came_of = False, False, Counter(), Counter()

    def _commit(self, now_s: float) -> list[Instruction]:
        self.in_parts = False
        committed = CommitStep(self.step, dict(self._given))
        self.step += 1
        self._given, self._told, self._came_of = Counter(), Counter(), Counter()
        self._given_up = set()
        if self._delayed:
            return [committed, *self._begin_delayed(now_s)]
        self._reports = {peer: replace(one, samples=0, at_s=now_s) for peer, one in self._last.items()}
        opened = self._open(now_s, at_commit=True) if self._reports else []
        if not self.open:
            self._reports = {}  # a longer step: they say themselves when they have begun
            return [committed]
        return [committed, *opened]

    def _begin_delayed(self, now_s: float) -> list[Instruction]:
        """The step is under way since the one before was opened: it opens, or goes on without a bound. Reports of it
        travel behind the contributions to the one before, so who has not said how far it is is known by its rate."""
        silent = self._most_next.keys() & self._ready & self._last.keys() - self._next.keys()
        began = {
            peer: replace(self._last[peer], samples=0, at_s=self._full_s, every_s=math.inf, most=self._most_next[peer])
            for peer in sorted(silent)
        }
        known, self._next, self._most_next = began | self._next, {}, {}
        lifted = {
            peer: replace(one, samples=one.whole(now_s), at_s=now_s, most=math.inf) for peer, one in known.items()
        }
        sooner_s = max(self.averages_take_s, now_s - self._full_s) if self.averages_take_s else LOOK_AHEAD_S
        for reports in (known, lifted):  # who has failed may have had a part that others have to make, too
            self._reports = {peer: replace(one, every_s=math.inf) for peer, one in reports.items()}
            opened = self._open(now_s, sooner_s=sooner_s)
            if self.open:
                return opened
        self._reports = lifted
        return [CollectOn(self.step)]

    def _take_from_next(self, now_s: float) -> list[Instruction]:
        """Ask as many as are needed for what they have of the next batch, which makes up for what is missing. The
        others keep what they have: all of it together would be a batch more."""
        held = {
            peer: replace(one, samples=one.whole(now_s), at_s=now_s, every_s=math.inf, most=math.inf)
            for peer, one in self._next.items()
            if not self._promises.doubts(peer)
        }
        chosen = donors({peer: one.samples for peer, one in held.items()}, self.needed, self.target_batch)
        reports = {peer: held[peer] for peer in sorted(chosen)}
        full_s = full_at_s(reports, self.needed, now_s, LOOK_AHEAD_S)
        if full_s is None:
            return []
        stops = {peer: samples for peer, samples in quotas(reports, self.needed, full_s).items() if samples}
        self._wait_for(stops, now_s, full_s)
        for peer, samples in stops.items():
            self._promises.ask(peer, Asked(self.step, samples, self._opened_s + self.patience_s, alone=False))
            self._next[peer] = replace(self._next[peer], samples=0, at_s=full_s)
        self._told.update(stops.keys())
        return [*(CollectOn(self.step, peer) for peer in stops), OpenStep(self.step, stops)]

    def _wait_for(self, stops: Mapping[str, int], now_s: float, full_s: float) -> None:
        self._awaited = {peer for peer, samples in stops.items() if samples}
        self._opened_s = max(now_s, full_s - AHEAD_S)

    def _came(self, event: ContributionCame, now_s: float) -> bool:
        """Take a contribution; returns whether its peer alone was asked for it."""
        peer = event.peer
        alone = self._promises.came(peer, event.step, event.samples, now_s)
        if self.counts(peer, event.step, event.samples):
            self._given[peer] += event.samples
            self._came_of[peer] += 1
            if self._awaited and peer in self._given_up and not self.needed:
                for other in self._awaited:  # it has come after all: nobody has to make up for it any more
                    self._promises.take_back(other)
                self._awaited = set()
            self._sent(peer)
            if self._awaited is not None:
                self._promises.took(peer, now_s - self._opened_s)
        return alone

    def _ahead_s(self, reports: Mapping[str, Report], now_s: float) -> float:
        """How long before a batch is full its step is opened: who has not said how far it is would be left out, and the
        first micro-batch of who has not said how fast it is would come on top."""
        counted_on = {peer for peer in self._ready if not self._promises.doubts(peer)}
        on_top = sum(one.micro_batch for one in reports.values() if not one.samples_per_s and one.trusted(now_s))
        return AHEAD_S if counted_on <= set(reports) and on_top <= MOST_OVER * self.target_batch else 0.0

    def _open(self, now_s: float, *, at_commit: bool = False, sooner_s: float = 0.0) -> list[Instruction]:
        counted_on = {peer: report for peer, report in self._reports.items() if not self._promises.doubts(peer)}
        ahead_s = AHEAD_S if at_commit else self._ahead_s(counted_on, now_s)
        full_s = full_at_s(counted_on, self.needed, now_s, ahead_s + sooner_s)
        if full_s is None:
            until_s = now_s + self.patience_s
            commits = at_commit or sooner_s > 0
            full = not commits and full_at_s(self._reports, self.needed, now_s, 0.0) is not None
            return self._ask_doubted(now_s, until_s) if full else []
        stops = quotas(counted_on, self.needed, full_s)
        self._wait_for(stops, now_s, full_s)
        first = math.inf if sooner_s else 0.0  # the first average is about to be sent, or is far
        self._full_s, self._beside_s = full_s, self.averages_take_s or first
        until_s = self._opened_s + self.patience_s
        if at_commit:
            stops |= self._trials({peer for peer in self._last if self._promises.doubts(peer) or not stops.get(peer)})
        for peer, report in self._reports.items():
            if not self._promises.is_asked(peer, self.step, now_s):
                least = min(stops.get(peer, report.samples), self.target_batch)
                self._promises.ask(peer, Asked(self.step, least, until_s, alone=False))
        # No volunteer makes more than a whole batch: it waits there, whatever it is taken to have.
        every = {peer: min(stops.get(peer, 0), self.target_batch) for peer in sorted(self._ready)}
        self._next, self._most_next = {}, self._parts_of_next(now_s) if self._delayed else {}
        self._told.update(every.keys())
        return [OpenStep(self.step, every, self._most_next)]

    def _parts_of_next(self, now_s: float) -> dict[str, int]:
        """How many samples of the next step's batch fall to each peer: all of it to those that are counted on."""
        known = {peer: self._last[peer] for peer in sorted(self._ready & self._last.keys())}
        counted_on = {peer: one for peer, one in known.items() if not self._promises.doubts(peer)}
        parts = parts_of_batch(counted_on, self.target_batch, now_s)
        if not parts:
            return {}
        return dict.fromkeys(known, 0) | parts | self._trials({peer for peer in known if not parts.get(peer)})

    def _trials(self, tried: Set[str]) -> dict[str, int]:
        return trials({peer: self._last[peer].micro_batch for peer in tried}, self.target_batch, self.step)

    def _ask_doubted(self, now_s: float, until_s: float) -> list[Instruction]:
        """With those who are doubted the batch would be full: they are asked for what they say they have."""
        stops = {
            peer: min(report.samples, self.target_batch)
            for peer, report in sorted(self._reports.items())
            if self._promises.doubts(peer) and report.samples and not self._promises.is_asked(peer, self.step, now_s)
        }
        for peer, samples in stops.items():
            self._promises.ask(peer, Asked(self.step, samples, until_s, alone=True))
        self._told.update(stops.keys())
        return [OpenStep(self.step, stops)] if stops else []

    def _sent(self, peer: str) -> None:
        self._reports.pop(peer, None)
        if self._awaited is not None:
            self._awaited.discard(peer)

    def _forget(self, peer: str) -> None:
        self._ready.discard(peer)
        self._sent(peer)
        self._next.pop(peer, None)
        self._last.pop(peer, None)
        self._refused.pop(peer, None)
        self._promises.forget(peer)
