"""The picture of a simulated run: throughput over time, time lost by cause, staleness.

Decides the drawing only. Beside ravnest.pictures, whose canvas it uses.
"""

from __future__ import annotations

from pathlib import Path

from cluster_planner import rate
from ravnest.pictures import panels, save
from ravnest.simulator.simulated_run import Simulated

_LEAST_SHARE = 0.0005


def time_unit(seconds: float) -> tuple[float, str]:
    """(its seconds, its name): the unit in which so long an axis has readable figures."""
    if seconds > 2 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if seconds > 120 else (1.0, "s")


def draw_simulation(result: Simulated, predicted_samples_per_s: float, path: Path, *, steady: bool) -> None:
    """Three panels side by side, as one PNG. `steady`: whether the run has shown a steady state, whose mean is drawn;
    else the mean until the drain is.
    """
    figure, (speed, lost, stale) = panels(3, width_in=13.0, height_in=4.0)
    unit_s, unit = time_unit(result.drain_s)
    speed.plot([end_s / unit_s for end_s, _ in result.over_time], [each for _, each in result.over_time], linewidth=1.2)
    from_s, mean = mean_of(result, steady=steady)
    label = f"mean{' of the steady state' if steady else ''}: {rate(mean)}"
    speed.hlines(mean, from_s / unit_s, result.drain_s / unit_s, linewidth=1.5, color="C3", label=label)
    speed.axhline(
        predicted_samples_per_s,
        linestyle="--",
        linewidth=1.0,
        color="#444444",
        label=f"predicted: {rate(predicted_samples_per_s)}",
    )
    speed.set_ylim(0, 1.1 * max([predicted_samples_per_s, *(each for _, each in result.over_time)]))
    speed.set_xlabel(f"time since the start, {unit}")
    speed.set_ylabel("samples/s of the fleet")
    speed.legend(frameon=False)
    causes = sorted((share, cause) for cause, share in result.lost.items() if share >= _LEAST_SHARE)
    lost.barh([cause for _, cause in causes], [100 * share for share, _ in causes], color="C1")
    lost.set_xlabel("% of all stages' time lost")
    total = sum(result.staleness.values()) or 1
    stale.bar(
        [str(updates) for updates in result.staleness],
        [100 * count / total for count in result.staleness.values()],
        color="C2",
    )
    stale.set_xlabel("staleness, updates")
    stale.set_ylabel("% of gradients")
    save(figure, path)


def mean_of(result: Simulated, *, steady: bool) -> tuple[float, float]:
    """(from when on, samples/s of the fleet) until the drain."""
    if steady:
        return result.steady_from_s, result.samples_per_s
    spans = [each for _, each in result.over_time]
    return 0.0, sum(spans) / max(1, len(spans))
