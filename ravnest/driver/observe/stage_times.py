"""Where the stages' time went, as shares: from their ledgers, as they tell them at each update. Pure.

Decides what counts as the steady state: from a stage's first update, when the pipeline has filled, to its last one
before the run drains; and only from its first update behind the first checkpoint on, which takes the links for itself,
where another one follows. The whole is from its start to the last merge.
"""

from collections.abc import Iterable, Mapping

from ravnest.driver.observe.report import TimeShares
from ravnest.pipeline.time_ledger import HANDOFF, WAITS

_DIGITS = 5

Spent = Mapping[str, float]
"""Seconds by the ledger's states, since the stage began."""


class StageTimes:
    """The ledgers of one run's stages."""

    def __init__(self) -> None:
        self._first: dict[str, Spent] = {}
        self._filled: dict[str, Spent] = {}
        self._updates: dict[str, list[int]] = {}
        """Of each stage: the numbers of its update at the steady state's two beginnings, and of the last one in it."""
        self._latest: dict[str, Spent] = {}
        self._steady: dict[str, Spent] = {}
        self._shown: dict[str, Spent] = {}
        self._saved = False
        self._draining = False

    def told(self, stage: str, spent: Spent, update: int | None = None) -> None:
        """A stage's ledger as of now, and the number of the update that it has just made."""
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

    def saved(self) -> None:
        """A checkpoint is written, as the first round has one. The update that was under way meanwhile shared its links
        with state that is sent once: the steady state begins at its end."""
        self._saved = True

    def draining(self) -> None:
        """What comes from now on is no longer the steady state."""
        self._draining = True

    def steady(self, stage: str) -> TimeShares | None:
        """None where no second update came before the drain."""
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
        return _shares(self._latest.get(stage, {}), {})

    def since_last(self, stages: Iterable[str]) -> dict[str, TimeShares]:
        """Of each stage that has told anything since the last call: what it did meanwhile."""
        news = {}
        for stage in stages:
            latest = self._latest.get(stage, {})
            shares = _shares(latest, self._shown.get(stage, {}))
            self._shown[stage] = latest
            if shares is not None:
                news[stage] = shares
        return news


def _shares(until: Spent, since: Spent) -> TimeShares | None:
    # A first stage that was not let go yet, or any before it was told anything, has not been part of the pipeline.
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
