"""What a page shows of the experts that a run asks of others: their hosts, and how long the stages waited. Pure.

In: the records of kind `experts` of metrics.jsonl. Out: a row of plain data for each grid. What a record says that does
not fit is left out.
"""

from collections.abc import Mapping

from ravnest.page.stage_view import number

MOST_GRIDS, MOST_HOSTS = 64, 1000
"""So many are kept; a file that names more is no run's."""

_OF_HOST = ("experts", "most_experts", "samples_per_s", "answer_s", "updates")
_OF_STAGE = ("batches", "waited_s", "requests", "dropped")


class ExpertViews:
    """All grids of one run that were heard of."""

    def __init__(self) -> None:
        self._grids: dict[str, dict[str, object]] = {}

    def take(self, record: Mapping[str, object]) -> None:
        """Take a record of kind `experts`."""
        grids = record.get("grids")
        for grid in grids if isinstance(grids, list) else ():
            if not isinstance(grid, dict):
                continue
            name = str(grid.get("grid"))
            if name in self._grids or len(self._grids) < MOST_GRIDS:
                self._grids[name] = _row(name, grid)

    def rows(self) -> list[dict[str, object]]:
        """A row for each grid, by name."""
        return [self._grids[name] for name in sorted(self._grids)]


def _row(name: str, grid: Mapping[str, object]) -> dict[str, object]:
    told, given = grid.get("stages"), grid.get("hosts")
    hosts = [
        {"host": str(host.get("host")), **{key: number(host.get(key)) for key in _OF_HOST}}
        for host in (given[:MOST_HOSTS] if isinstance(given, list) else ())
        if isinstance(host, dict)
    ]
    stages = [one for one in (told.values() if isinstance(told, dict) else ()) if isinstance(one, dict)]
    sums = {key: sum(number(one.get(key)) or 0.0 for one in stages) for key in _OF_STAGE}
    return {
        "grid": name,
        "experts": number(grid.get("places")),
        "hosted": sum(number(host["experts"]) or 0.0 for host in hosts),
        "requests": sums["requests"],
        "dropped": sums["dropped"],
        "wait_s": sums["waited_s"] / sums["batches"] if sums["batches"] else None,
        "hosts": hosts,
    }
