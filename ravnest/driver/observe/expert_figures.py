"""What the stages of a run have asked of experts that others host, as they report it. Pure.

In: what each stage has asked of each grid since it began, and what the hosts say of themselves. Out: one row of plain
data for each grid, for metrics.jsonl.
"""

from collections.abc import Mapping

from ravnest.stage.expert_reports import ExpertsAsked


class ExpertFigures:
    """The experts of one run."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, ExpertsAsked]] = {}
        """By grid and by stage: what it told last, the latest stage at the end."""
        self._news: set[str] = set()

    def told(self, stage: str, message: ExpertsAsked) -> None:
        """Take what a stage has reported."""
        of_grid = self._told.setdefault(message.grid, {})
        of_grid.pop(stage, None)
        of_grid[stage] = message
        self._news.add(message.grid)

    def since_last(self) -> list[dict[str, object]]:
        """The grids that something was reported of since the last call."""
        news, self._news = self._news, set()
        return [_row(grid, self._told[grid]) for grid in sorted(news)]


def _row(grid: str, told: Mapping[str, ExpertsAsked]) -> dict[str, object]:
    last = list(told.values())[-1]
    hosts = [
        {
            "host": name,
            "experts": count,
            "most_experts": last.most_experts.get(name),
            "samples_per_s": last.samples_per_s.get(name),
            "answer_s": last.answer_s.get(name),
            "updates": last.updates.get(name),
        }
        for name, count in sorted(last.experts.items())
    ]
    stages = {
        stage: {"batches": one.batches, "waited_s": one.waited_s, "requests": one.requests, "dropped": one.dropped}
        for stage, one in sorted(told.items())
    }
    return {"grid": grid, "places": last.places, "hosts": hosts, "stages": stages}
