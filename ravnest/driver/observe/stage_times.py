"""The shares of the stages' time by what they did, from the ledgers that the stages report.

In: the stages' ledgers, and the moments of the first checkpoint and of the drain. Out: shares of time, over the steady
state, over all, and since the last question; seconds from one update to the next.

The steady state of a stage lasts from its first update, when the pipeline has filled, to its last update before the run
drains. Where two updates follow the first checkpoint, it begins at the first update after that checkpoint instead,
because a checkpoint takes links for itself.
"""

from collections.abc import Iterable, Mapping

from ravnest.driver.observe.report import TimeShares
from ravnest.pipeline.time_ledger import HANDOFF, WAITS

_DIGITS = 5

Spent = Mapping[str, float]
"""A stage's ledger: seconds by state since the stage began."""


class StageTimes:
    """The shares of the stages' time by what they did, from the ledgers that they report."""

    def __init__(self) -> None:
        self._first: dict[str, Spent] = {}
        self._filled: dict[str, Spent] = {}
        self._updates: dict[str, list[int]] = {}
        """By stage: the numbers of the updates with which the steady state begins (at the start, and after the first
        checkpoint), and of the last update in it."""
        self._latest: dict[str, Spent] = {}
        self._steady: dict[str, Spent] = {}
        self._shown: dict[str, Spent] = {}
        self._saved = False
        self._draining = False

    def told(self, stage: str, spent: Spent, update: int | None = None) -> None:
        """Take a stage's ledger as of now, with the number of the update that it has just made."""
        self._latest[stage] = spent
        if self._draining:
            return
        self._steady[stage] = spent
        if stage not in self._first:
            self._first[stage] = spent
            self._updates[stage] = [update or 0] * 3
        if self._saved and stage not in self._filled:
            self._updates[stage][1] = update or 0
            self._filled[stage] = spent
        self._updates[stage][2] = update or 0

    def begins_anew(self, stage: str) -> None:
        """Another process is that stage now, with a ledger of its own: its figures are those of the new one alone."""
        for kept in (self._first, self._filled, self._updates, self._latest, self._steady, self._shown):
            kept.pop(stage, None)

    def saved(self) -> None:
        """A checkpoint has been written. The update that was under way meanwhile shared its links with state that is
        sent once, so the steady state begins at the end of that update."""
        self._saved = True

    def draining(self) -> None:
        """The run drains: the steady state has ended."""
        self._draining = True

    def steady(self, stage: str) -> TimeShares | None:
        """A stage's shares in the steady state; None where it made no second update before the drain."""
        until, first = self._steady.get(stage, {}), self._first.get(stage, {})
        return (_shares(until, self._filled[stage]) if self._went_on(stage) else None) or _shares(until, first)

    def update_s(self, stage: str) -> float | None:
        """Seconds from one update to the next in the steady state, by the stage's own clock. None as for `steady`."""
        shares = self.steady(stage)
        if shares is None:
            return None
        first, filled, last = self._updates[stage]
        made = last - (filled if self._went_on(stage) else first)
        return shares.seconds / made if made > 0 else None

    def _went_on(self, stage: str) -> bool:
        """Whether the stage has made two updates after the first checkpoint."""
        return stage in self._filled and self._updates[stage][2] > self._updates[stage][1]

    def overall(self, stage: str) -> TimeShares | None:
        """A stage's shares from its start to its last report; None where it has reported nothing."""
        return _shares(self._latest.get(stage, {}), {})

    def since_last(self, stages: Iterable[str]) -> dict[str, TimeShares]:
        """Return the shares of each stage that has reported since the last call, for the time since then."""
        news = {}
        for stage in stages:
            latest = self._latest.get(stage, {})
            shares = _shares(latest, self._shown.get(stage, {}))
            self._shown[stage] = latest
            if shares is not None:
                news[stage] = shares
        return news


def _shares(until: Spent, since: Spent) -> TimeShares | None:
    # Until a first stage may begin, and until another stage has got its first message, it is not part of the pipeline.
    seconds = {state: until[state] - since.get(state, 0.0) for state in until if state != "start"}
    total_s = sum(seconds.values())
    if total_s <= 0:
        return None
    share = {state: round(spent_s / total_s, _DIGITS) for state, spent_s in seconds.items()}
    forward, backward, update = (share.get(state, 0.0) for state in ("forward", "backward", "update"))
    backward += share.get("weights", 0.0)  # the second part of split ones
    waiting = {cause: share[cause] for cause in WAITS if share.get(cause, 0.0) > 0}
    return TimeShares(
        seconds=round(total_s, _DIGITS),
        compute=forward + backward + update,
        forward=forward,
        backward=backward,
        update=update,
        averaging=share.get("snapshot", 0.0) + share.get("merge", 0.0),
        evaluation=share.get("evaluation", 0.0),
        handoff=share.get(HANDOFF, 0.0),
        bubble=sum(waiting.values(), 0.0),
        waiting=waiting,
    )
