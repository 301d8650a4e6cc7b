"""history.jsonl: the past of a run, thinned, so that who looks at a run of days need not read all of metrics.jsonl.

In: each record of metrics.jsonl, and the byte at which it begins there. Out: the records that are kept, of the same
form and with their `byte`: the first line of the file (kind `history`), all that happens seldom, and of what comes
every second a `past` record for each 400th of the training time so far. So the file grows with the logarithm of the
time, and with what happens. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

OFTEN = frozenset({"progress", "update", "time", "links", "experts", "strangers", "contributions"})
"""The kinds that come again and again. The end of metrics.jsonl has the latest of each."""
PARTS = 400
"""A `past` record stands for this part of the time until then, and for one second at least."""
BEGINNING: Mapping[str, object] = {"kind": "history", "at_s": 0.0, "byte": 0, "version": 1}
"""The first line: the file knows all of its metrics.jsonl."""


@dataclass
class _Mean:
    """Of so many numbers."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    @property
    def value(self) -> float:
        """With as many digits as a picture shows."""
        return float(f"{self.total / max(1, self.count):.6g}")


class History:
    """What is kept of one session's records, of a run that may have had others."""

    def __init__(self, last: Mapping[str, object] | None = None) -> None:
        """`last`: the last `past` record of the sessions before."""
        self._session_s = 0.0 if last is None else float(str(last["at_s"]))
        self._told_s = 0.0 if last is None else float(str(last["trained_s"]))
        self._before_s = self._told_s - self._session_s
        """The training time of the sessions before this one."""
        self._progress: Mapping[str, object] | None = None
        """The last progress, where no `past` record has told it yet."""
        self._rate = _Mean()
        self._losses: dict[str, _Mean] = {}
        self._stalest: dict[str, int] = {}
        """By stage: the highest staleness so far."""
        self._risen: dict[str, int] = {}
        """The same of those stages of which no `past` record has told it yet."""

    def take(self, record: Mapping[str, object], byte: int) -> list[dict[str, object]]:
        """Take a record that begins at that byte of metrics.jsonl. Returns what is kept."""
        found: list[dict[str, object]] = []
        at_s = float(str(record["at_s"]))
        if at_s < self._session_s - 1.0:  # another session
            found += self.rest(byte)
            self._before_s += self._session_s
        self._session_s = at_s
        match record["kind"]:
            case "progress":
                self._progressed(record)
                if self._trained_s - self._told_s >= max(1.0, self._trained_s / PARTS):
                    found += self.rest(byte)
            case "update":
                self._updated(record)
            case "round":  # what came to each stage is in metrics.jsonl, at that byte
                found.append({**record, "received": {}, "byte": byte})
            case kind if kind not in OFTEN:
                found.append({**record, "byte": byte})
        return found

    def rest(self, byte: int) -> list[dict[str, object]]:
        """What is kept of the time since the last `past` record; nothing where nothing has come since."""
        if self._progress is None:
            return []
        kept = {
            "kind": "past",
            "at_s": self._progress["at_s"],
            "byte": byte,
            "trained_s": round(self._trained_s, 3),
            "samples": self._progress["samples"],
            "samples_per_s": self._rate.value,
            "losses": {name: mean.value for name, mean in self._losses.items()},
            "max_staleness": self._risen,
        }
        self._told_s, self._progress = self._trained_s, None
        self._rate, self._losses, self._risen = _Mean(), {}, {}
        return [kept]

    @property
    def _trained_s(self) -> float:
        return self._before_s + self._session_s

    def _progressed(self, record: Mapping[str, object]) -> None:
        clusters = record.get("clusters")
        told = clusters if isinstance(clusters, list) else []
        self._progress = record
        self._rate.add(sum(each["samples_per_s"] or 0.0 for each in told))
        for each in told:
            if each["loss"] is not None:
                self._losses.setdefault(each["name"], _Mean()).add(each["loss"])

    def _updated(self, record: Mapping[str, object]) -> None:
        staleness = record.get("staleness")
        if isinstance(staleness, list) and staleness:
            stage, most = f"{record['cluster']}.s{record['stage']}", max(staleness)
            if most > self._stalest.get(stage, 0):
                self._stalest[stage] = self._risen[stage] = most
