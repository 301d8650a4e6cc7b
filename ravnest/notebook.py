"""A run shows its losses in the cell of the notebook that has started it.

In: the events of a run. Out: one picture, drawn anew every few seconds, and below it a line of how far the run is and
what has happened last. IPython is asked only where a notebook has imported it already.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable
from typing import Any

from ravnest.driver.observe import report
from ravnest.factories import is_imported
from ravnest.pictures import loss_figure, png_of

DRAW_EVERY_S = 3.0
MOST_POINTS = 400
"""Points of each curve; of a longer run every other one is left out, again and again."""

_QUIET = (report.ProgressEvent, report.RoundCommittedEvent)


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook, whose front end shows pictures."""
    if not is_imported("IPython"):
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def observer_here() -> report.Observer:
    """Who observes a run that names nobody: the cell of a notebook, or nobody."""
    return LivePlot() if in_notebook() else _Unobserved()


class _Unobserved:
    def on(self, event: report.RunEvent) -> None:
        """Ignores the events of a run that nobody observes."""


class LivePlot:
    """An observer of a run, for `ravnest.run(..., observer=LivePlot())`; in a notebook that is the default."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        from IPython import display

        self._show, self._now = display, now
        self._curves: list[dict[str, Any]] = []
        self._evaluated: list[dict[str, Any]] = []
        self._progress, self._said = "", ""
        self._drawn_s, self._final = float("-inf"), False
        self._picture = display.display(display.HTML("<p>preparing</p>"), display_id=True)
        self._words = display.display(display.HTML(""), display_id=True)

    def on(self, event: report.RunEvent) -> None:
        """Take one event of the run."""
        record = {"kind": report.kind_of(event), **report.as_plain(event)}
        match event:
            case report.ProgressEvent():
                self._curves.append(record)
                if len(self._curves) > MOST_POINTS:
                    del self._curves[1::2]
                speed = sum(cluster.samples_per_s for cluster in event.clusters)
                whole = "" if event.total_samples is None else f" of {event.total_samples:,}"
                self._progress = f"{event.samples:,}{whole} samples, {speed:,.1f} samples/s"
            case report.EvaluatedEvent():
                self._evaluated.append(record)
        if not isinstance(event, _QUIET):
            self._said = _words_of(event)
        self._final = self._final or (isinstance(event, report.EvaluatedEvent) and event.final)
        if self._now() - self._drawn_s >= DRAW_EVERY_S or self._final:  # the last samples are told after the last loss
            self._draw()

    def _draw(self) -> None:
        self._drawn_s = self._now()
        if self._curves:
            figure = loss_figure([*self._curves, *self._evaluated], {})
            self._picture.update(self._show.Image(data=png_of(figure), format="png"))
        lines = (line for line in (self._progress, self._said) if line)
        self._words.update(self._show.HTML("<br>".join(map(html.escape, lines))))


def _words_of(event: report.RunEvent) -> str:
    """An event in a few words: its kind, and what it says of itself."""
    plain = report.as_plain(event)
    told = (
        f"{name}: {f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in plain.items()
        if value not in (None, "", {}, [], ())
    )
    return f"{report.kind_of(event)} ({', '.join(told)})" if plain else report.kind_of(event)
