"""The picture of a simulated run: throughput over time, time lost by cause, staleness.

Decides the drawing only. Beside ravnest.pictures, whose canvas it uses.
"""

from __future__ import annotations

from pathlib import Path

from ravnest.pictures import panels, save
from ravnest.simulation.simulated import Simulated

_LEAST_SHARE = 0.0005


def draw_simulation(result: Simulated, predicted_samples_per_s: float, path: Path) -> None:
    """Three panels side by side, as one PNG."""
    figure, (speed, lost, stale) = panels(3, width_in=13.0, height_in=4.0)
    unit_s, unit = (3600.0, "hours") if result.drain_s > 2 * 3600 else (60.0, "minutes")
    speed.plot([end_s / unit_s for end_s, _ in result.over_time], [each for _, each in result.over_time], linewidth=1.2)
    speed.axhline(predicted_samples_per_s, linestyle="--", linewidth=1.0, color="#444444", label="predicted")
    speed.set_ylim(0, 1.1 * max([predicted_samples_per_s, *(each for _, each in result.over_time)]))
    speed.set_xlabel(f"{unit} since the start")
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
