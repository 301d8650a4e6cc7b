"""A host of experts: computes what callers ask, and keeps its experts in the table, on its disk and with stand-bys.

In: an endpoint, a node of the hash table, and what experts.yaml says. Out: answers, and lines for a person. One thread,
that of `serve`, owns the endpoint, the experts and all state. The table's node has a thread of its own, whose results
are taken up here. What to claim and to give up is decided in claims.py, what to compute in request_work.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from ravnest.errors import InvalidInput, NotWritten
from ravnest.experts.announcements import (
    Announcer,
    Seen,
    claim_entries,
    host_entry,
    look,
    member_withdrawal,
)
from ravnest.experts.claims import Claims, GiveUp, Kept, Origin, Take, stand_by
from ravnest.experts.config import ExpertsConfig, build_expert
from ravnest.experts.expert import HostedExpert
from ravnest.experts.expert_files import ExpertFiles
from ravnest.experts.grid import Expert, HostNews, expert_text, still_known
from ravnest.experts.kept_copies import KeptCopies
from ravnest.experts.known_members import KnownMembers, listens_at
from ravnest.experts.messages import Backward, Copy, CopyKept, Forward, Hello, Welcome
from ravnest.experts.request_work import Reply, RequestWork, WorkFigures
from ravnest.experts.sent_copies import SentCopies
from ravnest.experts.table_thread import TableThread
from ring_allreduce import PeerStalled, UnknownPeer
from ring_allreduce.transport import Delivery, Endpoint, Lane, Message

LOOK_S = 2.0
"""Between two looks at the table. After one that takes longer than half of it, the pause is as long as the look: with a
large grid, on busy machines, all hosts would look without a pause, and no look would come to its end."""

POLL_S = 0.25
"""The longest wait for a message: after it, other work may be due."""

LEAVE_S = 20.0
"""To hand all experts over when the host leaves."""


@dataclass
class HostFigures:
    """What has become of a host's experts since it began."""

    began: Counter[str] = field(default_factory=Counter)
    """Experts by where their state came from."""
    given_up: int = 0
    handed_over: int = 0
    not_written: int = 0
    copies_refused: int = 0
    """Copies for which another host had no room."""
    unreachable: int = 0
    """Messages for members that are gone, or take nothing."""


class ExpertHost:
    """One host. All methods but `stop` belong to one thread."""

    def __init__(
        self,
        config: ExpertsConfig,
        endpoint: Endpoint,
        table: TableThread,
        *,
        token: bytes,
        most_experts: int,
        copies: KeptCopies,
        wanted: Sequence[Expert] = (),
        folder: Path | None = None,
        search_dirs: Sequence[Path] = (),
        path: str | None = None,
        look_s: float = LOOK_S,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """
        Arguments:
            endpoint: named as grid.member_name says, with the codec of messages.py. token: of all members.
            most_experts: it claims no more. copies: what it may keep for other hosts.
            wanted: experts that it claims as soon as nobody else does.
            folder: for checkpoints; without it there are none.
            search_dirs: where the factory's module is looked for. path: the file that is named in errors.
            report: is told, in a line each, what becomes of experts.
        """
        self._config, self._endpoint, self._table = config, endpoint, table
        self._grid = replace(config.places, token=token)
        self._search_dirs, self._path = search_dirs, path
        self._files = None if folder is None else ExpertFiles(folder, config.places)
        self._checkpoints = {} if self._files is None else self._files.stored()
        self._look_s, self._report = look_s, report
        self._claims = Claims(endpoint.name, most_experts, wanted)
        self._most_experts = most_experts
        self._experts: dict[Expert, HostedExpert] = {}
        self._copies = copies
        self._work = RequestWork(config, self._experts)
        self._seen = Seen({}, {}, {}, complete=False)
        self._hosts: dict[str, HostNews] = {}
        self._members = KnownMembers(endpoint, report)
        self._looking: Future[Seen] | None = None
        self._announcer = Announcer(table, report)
        self._changed: set[Expert] = set()
        """Of which it is to say in the table whether it claims them."""
        self._look_at_s = 0.0
        self._looks = 0
        now_s = time.monotonic()
        self._copy_at_s = now_s + config.copy_every_s
        self._checkpoint_at_s = now_s + config.checkpoint_every_s
        self._copied = SentCopies()
        self._written: dict[Expert, int] = {}
        self._stopped = self._leaving = False
        self._offered: dict[Expert, set[str]] = {}
        """While it leaves: the experts that nobody has taken yet, and whom each was offered to."""
        self.figures = HostFigures()
        self._began_s = now_s

    @property
    def name(self) -> str:
        """The member's name."""
        return self._endpoint.name

    @property
    def experts(self) -> Mapping[Expert, HostedExpert]:
        """What it hosts."""
        return self._experts

    @property
    def work(self) -> WorkFigures:
        """What it has computed and refused."""
        return self._work.figures

    @property
    def copies(self) -> Mapping[Expert, Kept]:
        """Of which experts it keeps a copy for another host."""
        return self._copies.kept

    def stop(self) -> None:
        """Let `serve` end, from any thread or signal handler."""
        self._stopped = True
        self._endpoint.wake()

    def serve(self, seconds: float | None = None) -> None:
        """Answer until `stop`, or for so many seconds; then hand the experts over, and withdraw from the table."""
        ends_s = None if seconds is None else time.monotonic() + seconds
        while not self._stopped and (ends_s is None or time.monotonic() < ends_s):
            self.step()
        self._leave()

    def step(self) -> None:
        """Do what is due, and wait for a message for `POLL_S` at most."""
        now_s = time.monotonic()
        self._tend(now_s)
        work_s = self._work.due_s()
        due = [now_s + POLL_S, *([] if work_s is None else [work_s])]
        if self._looking is None:  # else its end wakes the endpoint
            due.append(self._look_at_s)
        for delivery in self._endpoint.poll(max(0.0, min(due) - now_s)):
            self._take(delivery, time.monotonic())
        self._reply(self._work.compute(time.monotonic))

    # What members say.

    def _take(self, delivery: Delivery, now_s: float) -> None:
        message = delivery.message
        if isinstance(message, Forward | Backward):
            self._reply(self._work.take(delivery.sender, message, delivery.tensors, now_s))
        elif isinstance(message, Hello):
            self._send(delivery.sender, Welcome())
        elif isinstance(message, Copy) and delivery.sender in self._hosts:
            self._take_copy(delivery.sender, message, delivery.tensors)
        elif isinstance(message, CopyKept) and not message.take_over:
            if message.kept:
                self._copied.kept(message.expert, delivery.sender, message.updates)
            elif message.expert in self._experts:
                self.figures.copies_refused += 1
                self._copied.refused(message.expert, delivery.sender, now_s)
        elif isinstance(message, CopyKept) and delivery.sender in self._offered.get(message.expert, ()):
            if message.taken_over:
                self._handed_over(message.expert, delivery.sender)
            elif message.take_over:
                self._offer(message.expert)

    def _reply(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._send(reply.caller, reply.message, reply.tensors)

    def _send(self, peer: str, message: Message, tensors: Sequence[Tensor] = (), lane: Lane = Lane.PIPELINE) -> bool:
        """Send, and say whether that was possible: who is gone or takes nothing is not waited for."""
        try:
            self._endpoint.send(peer, lane, message, tensors)
        except (UnknownPeer, PeerStalled):
            self.figures.unreachable += 1
            return False
        return True

    # Copies of experts.

    def _take_copy(self, sender: str, message: Copy, tensors: tuple[Tensor, ...]) -> None:
        expert, kept = message.expert, Kept(message.term, message.updates)
        if not len(set(message.names)) == len(message.names) == len(tensors) or not self._grid.holds(expert):
            return
        # Only who hosts an expert may say in what state it is. Where the table does not say yet who does, nobody may
        # replace what there is.
        claim = self._seen.claims.get(expert)
        if expert in self._copies if claim is None else claim.value.member != sender:
            return
        state, taken = dict(zip(message.names, tensors, strict=True)), False
        takes = message.take_over and not self._leaving and expert not in self._experts and self._claims.room
        if takes and self._copies.fits(state):
            taken = self._host(self._claims.take(expert, kept, Origin.HANDED_OVER), (state, kept))
        over = message.take_over
        has = taken or (not over and self._copies.keep(expert, state, kept, self._is_stand_by))
        self._send(sender, CopyKept(expert=expert, updates=kept.updates, kept=has, take_over=over, taken_over=taken))

    def _is_stand_by(self, expert: Expert) -> bool:
        """Whether this host is to keep a copy of an expert: of one whose host is gone, and of what comes here."""
        claim = self._seen.claims.get(expert)
        takes = {name: host.most_experts for name, host in self._hosts.items()} | {self.name: self._most_experts}
        return claim is None or stand_by(expert, takes, claim.value.member) == self.name

    def _send_copy(self, expert: Expert, to: str, *, take_over: bool) -> bool:
        held = self._experts[expert]
        state = held.state()
        message = Copy(expert=expert, term=held.term, updates=held.updates, names=tuple(state), take_over=take_over)
        return self._send(to, message, list(state.values()), Lane.BULK)

    def _offer(self, expert: Expert) -> None:
        """Hand an expert to the next host that it prefers, of those with room that have not refused it."""
        refused = self._offered[expert]
        room = {
            name: host.most_experts - host.experts
            for name, host in self._hosts.items()
            if host.most_experts > host.experts and name not in refused
        }
        to = stand_by(expert, room, self._endpoint.name)
        if to is None:
            del self._offered[expert]
            return
        refused.add(to)
        if not self._send_copy(expert, to, take_over=True):
            self._offer(expert)

    def _handed_over(self, expert: Expert, to: str) -> None:
        del self._offered[expert]
        self._drop(expert)
        self._claims.gave(expert)
        self.figures.handed_over += 1
        self._report(f"{expert_text(expert)}: handed over to {to}")

    # What is due by the clock.

    def _tend(self, now_s: float) -> None:
        if self._looking is not None and self._looking.done():
            looking, self._looking = self._looking, None
            took_s = now_s - (self._look_at_s - self._look_s)
            if took_s > self._look_s / 2 > 0:
                self._look_at_s = max(self._look_at_s, now_s + took_s)
            error = looking.exception()
            if error is not None:
                self._report(f"a look at the table failed: {error}")
            else:
                self._saw(looking.result())
        if self._looking is None and now_s >= self._look_at_s:
            self._look_at_s = now_s + self._look_s
            self._looking = self._table.run(partial(look, grid=self._grid, known={*self._seen.hosts, self.name}))
            self._looking.add_done_callback(lambda _: self._endpoint.wake())
            self._announcer.say([host_entry(self._grid, self.news())])
        self._announcer.say(claim_entries(self._grid, self._changed, self._claims.own) if self._changed else [])
        self._changed.clear()
        self._announcer.tend()
        if now_s >= self._copy_at_s:
            self._copy_at_s = now_s + self._config.copy_every_s
            self._copy_changed(now_s)
        if now_s >= self._checkpoint_at_s:
            self._checkpoint_at_s = now_s + self._config.checkpoint_every_s
            self.checkpoint()

    def news(self) -> HostNews:
        """What it tells the table of itself."""
        figures = self._work.figures
        seconds = max(time.monotonic() - self._began_s, 1e-3)
        return HostNews(
            listens_at(self._endpoint, self._grid.proof_of(self._table.public_key)),
            len(self._experts),
            self._most_experts,
            figures.samples / seconds,
            figures.host_s / figures.requests if figures.requests else 0.0,
            figures.updates,
        )

    def _saw(self, seen: Seen) -> None:
        """Know the members that the table names, and claim and give up experts."""
        self._looks += 1
        old, now_s = self._seen, time.time()
        hosts, callers = still_known(old.hosts, seen.hosts, now_s), still_known(old.callers, seen.callers, now_s)
        self._seen = Seen(hosts, callers, still_known(old.claims, seen.claims, now_s), seen.complete)
        self._hosts = {name: one.value for name, one in hosts.items() if name != self._endpoint.name}
        told = {name: host.at for name, host in self._hosts.items()}
        self._members.meet(told | {name: one.value for name, one in callers.items()})
        if seen.complete:
            experts = list(self._grid.experts())
            claims = {expert: one.value for expert, one in self._seen.claims.items()}
            for decided in self._claims.looked(experts, claims, self.copies, self._checkpoints):
                if isinstance(decided, GiveUp):
                    self._drop(decided.expert)
                    self.figures.given_up += 1
                    self._report(f"{expert_text(decided.expert)}: given up to {decided.to}")
                else:
                    self._host(decided)

    def _host(self, taken: Take, handed_over: tuple[Mapping[str, Tensor], Kept] | None = None) -> bool:
        """Begin to host an expert; False where its state is of another kind of expert, and nothing is hosted. Then that
        state is used no more, and what else there is of the expert may be: others say what a copy holds."""
        made = build_expert(self._config, taken.expert, self._search_dirs, self._path)
        expert = HostedExpert(made, self._config)
        expert.term = taken.claim.term
        try:
            if taken.origin in (Origin.COPY, Origin.HANDED_OVER):
                state, kept = handed_over or self._copies.state(taken.expert)
                expert.restore(state, Kept(taken.claim.term, kept.updates))
            elif taken.origin is Origin.CHECKPOINT and self._files is not None:
                state, kept = self._files.read(taken.expert)
                expert.restore(state, Kept(taken.claim.term, kept.updates))
        except InvalidInput as error:
            self._report(f"{expert_text(taken.expert)}: the {taken.origin.value} cannot be used: {error}")
            if taken.origin is Origin.COPY:
                self._copies.drop(taken.expert)
            elif taken.origin is Origin.CHECKPOINT:
                self._checkpoints.pop(taken.expert, None)
            self._claims.gave(taken.expert)
            return False
        self._copies.drop(taken.expert)
        self._experts[taken.expert] = expert
        self.figures.began[taken.origin.value] += 1
        self._report(f"{expert_text(taken.expert)}: hosted here, {taken.origin.value}, {expert.updates} updates")
        self._changed.add(taken.expert)
        return True

    def _drop(self, expert: Expert) -> None:
        """Host an expert no longer. What waits for it is refused."""
        del self._experts[expert]
        self._copied.forget(expert)
        self._reply(self._work.drop(expert))
        self._changed.add(expert)

    def _copy_changed(self, now_s: float) -> None:
        takes = {name: host.most_experts for name, host in self._hosts.items()}
        for expert, held in self._experts.items():
            refusers = self._copied.refusers(expert, now_s)
            to = stand_by(expert, {name: most for name, most in takes.items() if name not in refusers}, self.name)
            if to is None or not self._copied.is_due(expert, to, held.updates, now_s):
                continue
            reached = self._send_copy(expert, to, take_over=False)
            self._copied.sent(expert, to, held.updates, now_s, reached=reached)

    def checkpoint(self) -> None:
        """Write each expert that has changed to the folder. A disk that refuses is reported, and tried again."""
        if self._files is None:
            return
        for expert, held in self._experts.items():
            if self._written.get(expert) == held.updates:
                continue
            try:
                self._files.write(expert, held.state(), held.kept)
                self._written[expert] = held.updates
                self._checkpoints[expert] = held.kept
            except NotWritten as error:
                self.figures.not_written += 1
                self._report(f"{expert_text(expert)}: not written: {error}")

    def _leave(self) -> None:
        """Write and hand over all experts, each to the host with room that it prefers, and withdraw."""
        self._leaving = True
        self._reply(self._work.close())  # who asks hears so at once, and asks another
        self.checkpoint()
        deadline_s = time.monotonic() + LEAVE_S
        self._offered = {expert: set() for expert in self._experts}
        for expert in list(self._offered):
            self._offer(expert)
        while self._offered and time.monotonic() < deadline_s:
            for delivery in self._endpoint.poll(POLL_S):
                self._take(delivery, time.monotonic())
        left = list(self._experts)
        if left:
            self._report(f"{len(left)} experts were handed to nobody: {', '.join(map(expert_text, left))}")
        self._announcer.say(claim_entries(self._grid, {*left, *self._changed}, {}))
        self._announcer.say([member_withdrawal(self._grid.hosts_key, self._endpoint.name)])
        self._announcer.end()
