"""Real stages whose computing is padded to a stated time, on links of the transport's own emulation.

How busy the slowest stage is once the pipeline is filled, and micro-batches per second, at several latencies: the
asynchronous schedule with its window tuned while running, GPipe and 1F1B with their flushes. Processes, sockets,
threads and updates are those of a run. The same rows under the virtual clock are in schedules.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster_planner import SYNCHRONOUS, Schedule
from experiments.harness.paced_model import MICRO_BATCH, WIDTH
from experiments.harness.paced_plan import BACKWARD_OVER_FORWARD, endless_setups, equal_stages, round_trip_window
from experiments.harness.report import Cell, Claim, Panel, Part, Series, Table
from experiments.pipeline.forked import StageRow, measure
from experiments.pipeline.schedules import MAX_STALENESS, UPDATE_EVERY
from ravnest.driver.imitation import Imitation
from ravnest.job.config import job_from_mapping
from ravnest.job.initial_weights import make_weights
from ravnest.job.materials import capture_job, load_data
from ring_allreduce.transport import LinkShape

FORWARD_S = 0.02
MICRO_BATCH_S = (1 + BACKWARD_OVER_FORWARD) * FORWARD_S
BYTES_PER_S = 125e6
LATENCIES_S = (0.0, 0.020, 0.100)
LAYERS = 8
JOB_FILE = Path(__file__).parents[1] / "harness" / "paced_model.py"
TOKEN = b"paced-tests-----"
LEAST_BUSY, MOST_LOST, OVER_GPIPE = 0.97, 0.05, 1.6
FILLED_S, MEASURED_S = 9.0, 12.0
LIMIT_S = 240.0


@dataclass(frozen=True)
class Setting:
    """One run. `update_every`: micro-batches of an update, which synchronous schedules do between two flushes."""

    schedule: Schedule
    stages: int
    update_every: int
    latency_s: float


@dataclass(frozen=True)
class Row:
    """What came of it."""

    setting: Setting
    stages: list[StageRow]

    @property
    def slowest(self) -> StageRow:
        """The stage that waited least."""
        return max(self.stages, key=lambda stage: stage.busy)

    @property
    def micro_batches_per_s(self) -> float:
        return 1e3 / max(stage.wall_ms for stage in self.stages)


def settings(*, quick: bool) -> list[Setting]:
    """Every schedule at every latency."""
    if quick:
        return [Setting("async", 4, 4, 0.0), Setting("gpipe", 4, 4, 0.0), Setting("1f1b", 4, 4, 0.02)]
    asynchronous = [
        Setting("async", stages, every, latency) for stages, every in UPDATE_EVERY.items() for latency in LATENCIES_S
    ]
    synchronous = [
        Setting(schedule, stages, count, latency)
        for stages in UPDATE_EVERY
        for schedule in SYNCHRONOUS
        for count in (4, 16)
        for latency in LATENCIES_S
    ]
    return asynchronous + synchronous


def row(setting: Setting, *, quick: bool = False) -> Row:
    """Run one setting."""
    asynchronous = setting.schedule == "async"
    job = job_from_mapping(
        {
            "model": {"factory": "paced_model:stack", "args": {"layers": LAYERS}},
            "data": {"factory": "paced_model:noise"},
            "loss": "mse",
            "micro_batch": MICRO_BATCH,
            "update_every": setting.update_every,
            "max_staleness": MAX_STALENESS if asynchronous else 0,
            "schedule": setting.schedule,
            "optimizer": {"name": "sgd", "lr": 1e-3},
            "average_every": 10**9,
            "evaluate_every": 10**9,
            "stop": {"samples": 10**9},
        }
    )
    captured = capture_job(job, JOB_FILE, load_data(job, JOB_FILE))
    link = LinkShape(BYTES_PER_S, setting.latency_s)
    window = round_trip_window(setting.stages, FORWARD_S, MICRO_BATCH * WIDTH * 4, link)
    plan = equal_stages(
        job,
        JOB_FILE,
        captured,
        clusters=1,
        stages=setting.stages,
        forward_s=FORWARD_S,
        link=link,
        window=window if asynchronous else flushed_window(setting),
    )
    setups = endless_setups(plan, job, captured, TOKEN, imitate=Imitation())
    update_s = setting.update_every * MICRO_BATCH_S
    if quick:
        warm_up, updates = 1, 2
    elif asynchronous:
        warm_up, updates = (max(4, round(seconds / update_s)) for seconds in (FILLED_S, MEASURED_S))
    else:
        warm_up, updates = 2, max(3, round(MEASURED_S / 2 / update_s))
    weights = make_weights(job, JOB_FILE)
    return Row(setting, measure(setups, weights, warm_up=warm_up, updates=updates, limit_s=LIMIT_S))


def flushed_window(setting: Setting) -> int:
    """Micro-batches in flight: GPipe's are all of an update, 1F1B's one for each stage."""
    return setting.update_every if setting.schedule == "gpipe" else min(setting.update_every, setting.stages)


def run(*, quick: bool) -> Part:
    """Measure, and judge."""
    rows = [row(setting, quick=quick) for setting in settings(quick=quick)]
    return Part(
        name="paced",
        title="Paced stages: busy in spite of latency",
        claims=_claims(rows),
        tables=[_table(rows)],
        panels=_panels(rows),
        notes=[
            f"A forward takes {1e3 * FORWARD_S:.0f} ms at each stage and a backward {BACKWARD_OVER_FORWARD} times as "
            f"long, by the clock; links carry {8e-6 * BYTES_PER_S:.0f} Mbit/s each way. Busy: forward, backward and "
            "update, over the time between the updates that count. Asynchronous rows begin with the plan's window, are "
            f"filled and tuned for {FILLED_S:.0f} s, and count for {MEASURED_S:.0f} s.",
        ],
    )


def _claims(rows: Sequence[Row]) -> list[Claim]:
    asynchronous = [each for each in rows if each.setting.schedule == "async"]
    worst = min(asynchronous, key=lambda each: each.slowest.busy)
    claims = [
        Claim(
            "busy",
            "share of the time in which the slowest stage computes, asynchronous, filled, in each row",
            f">= {LEAST_BUSY:.0%}",
            f"{worst.slowest.busy:.1%} at worst ({_words(worst.setting)})",
            worst.slowest.busy >= LEAST_BUSY,
        )
    ]
    by_setting = {each.setting: each.micro_batches_per_s for each in rows}
    lost = {}
    for stages, every in UPDATE_EVERY.items():
        near, far = (by_setting.get(Setting("async", stages, every, at)) for at in (LATENCIES_S[0], LATENCIES_S[-1]))
        if near and far:
            lost[stages] = 1 - far / near
    measured = ", ".join(f"{share:.1%} ({stages} stages)" for stages, share in lost.items())
    held = all(share <= MOST_LOST for share in lost.values()) if lost else None
    claims.append(
        Claim("latency", "throughput lost from 0 to 100 ms one way", f"<= {MOST_LOST:.0%}", measured or "–", held)
    )
    for latency_s in LATENCIES_S:
        mine = by_setting.get(Setting("async", 4, UPDATE_EVERY[4], latency_s))
        flushed = by_setting.get(Setting("gpipe", 4, 4, latency_s))
        if mine and flushed:
            claims.append(
                Claim(
                    f"over gpipe at {1e3 * latency_s:.0f} ms",
                    f"throughput over GPipe's, 4 stages, 4 micro-batches, {1e3 * latency_s:.0f} ms one way",
                    f">= {OVER_GPIPE}×",
                    f"{mine / flushed:.2f}×",
                    mine / flushed >= OVER_GPIPE,
                )
            )
    stale = max(stage.staleness for each in asynchronous for stage in each.stages)
    claims.append(
        Claim("staleness", "largest staleness of a gradient", f"<= {MAX_STALENESS}", f"{stale}", stale <= MAX_STALENESS)
    )
    return claims


def _table(rows: Sequence[Row]) -> Table:
    cells: list[list[Cell]] = [
        [
            each.setting.stages,
            each.setting.schedule,
            each.setting.update_every,
            round(1e3 * each.setting.latency_s),
            f"{each.slowest.busy:.1%}",
            round(each.micro_batches_per_s, 2),
            f"{each.micro_batches_per_s * MICRO_BATCH_S:.1%}",
            round(each.slowest.handoff_ms, 2),
        ]
        for each in rows
    ]
    columns = ["stages", "schedule", "micro-batches an update", "one way, ms", "slowest stage busy", "micro-batches/s"]
    return Table("Real stages", [*columns, "of a device that never waits", "handing over, ms"], cells)


def _panels(rows: Sequence[Row]) -> list[Panel]:
    panels = []
    for stages in UPDATE_EVERY:
        kinds = dict.fromkeys(
            (each.setting.schedule, each.setting.update_every) for each in rows if each.setting.stages == stages
        )
        series = []
        for schedule, every in kinds:
            found = [
                each
                for each in rows
                if (each.setting.stages, each.setting.schedule, each.setting.update_every) == (stages, schedule, every)
            ]
            at = [1e3 * each.setting.latency_s for each in found]
            series.append(Series(f"{schedule}, {every}", at, [each.micro_batches_per_s for each in found]))
        if series:
            panels.append(Panel(f"{stages} stages", "one way, ms", "micro-batches/s", series, target=1 / MICRO_BATCH_S))
    return panels


def _words(setting: Setting) -> str:
    return f"{setting.stages} stages, {1e3 * setting.latency_s:.0f} ms"
