"""How long a host may take to answer, from how long it took, and which hosts are left alone for a while. Pure.

The deadline is the mean of the answer times plus eight times their mean deviation, between named bounds. More than four
times, as in RFC 6298, is what one answer in fifty takes where delays are exponential, and with that answer a batch
loses what other experts have computed for it. Where n requests are under way to a host at a time, each answer counts
n / 2 times less (RFC 7323, appendix G): a host answers what it computes in one batch at once, so single answers say
little of what the next ones take. A host that leaves several requests in a row unanswered is left alone, longer each
time.
"""

from __future__ import annotations

LEAST_S = 1.0
"""A busy machine schedules late, and a batch may have to wait for others."""

FIRST_S = 10.0
"""Before the first answer is measured: the host may still be loading what it needs."""

MOST_S = 30.0
ROW = 3
"""Times in a row that a host leaves requests unanswered before it is left alone."""

REST_S = 5.0
MOST_REST_S = 120.0
_MOST_ROW = 16
_MEAN_SHARE, _DEVIATION_SHARE, _DEVIATIONS = 1 / 8, 1 / 4, 8.0


class AnswerTimes:
    """The answers of one host."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._deviation_s = 0.0
        self._row = 0
        self._noticed_s = float("-inf")
        self._rests = 0
        self._rests_until_s = float("-inf")

    @property
    def mean_s(self) -> float | None:
        """The mean time of an answer, None before the first."""
        return self._mean_s

    @property
    def deadline_s(self) -> float:
        """How long to wait for the next answer; twice as long after each silence, until an answer comes."""
        if self._mean_s is None:
            return FIRST_S
        measured_s = max(self._mean_s + _DEVIATIONS * self._deviation_s, LEAST_S)
        return min(measured_s * 2.0**self._row, MOST_S)

    def answered(self, after_s: float, under_way: int = 1) -> None:
        """An answer came so long after its request; one that came too late counts, too. `under_way`: requests to this
        host that were not answered yet, with this one."""
        self._row = self._rests = 0
        self._rests_until_s = float("-inf")
        if self._mean_s is None:
            self._mean_s, self._deviation_s = after_s, after_s / 2
            return
        off_s, at_a_time = after_s - self._mean_s, max(1.0, under_way / 2)
        self._mean_s += _MEAN_SHARE / at_a_time * off_s
        self._deviation_s += _DEVIATION_SHARE / at_a_time * (abs(off_s) - self._deviation_s)

    def failed(self, sent_s: float, now_s: float) -> None:
        """A request that was sent at `sent_s` was not answered in time. Those that were under way when the last failure
        was noticed belong to the same silence, and count no further."""
        if sent_s < self._noticed_s:
            return
        self._noticed_s = now_s
        self._row = min(self._row + 1, _MOST_ROW)
        if self._row >= ROW and now_s >= self._rests_until_s:
            self._rests_until_s = now_s + min(REST_S * 2.0**self._rests, MOST_REST_S)
            self._rests += 1

    def rests(self, now_s: float) -> bool:
        """Whether the host is left alone now."""
        return now_s < self._rests_until_s
