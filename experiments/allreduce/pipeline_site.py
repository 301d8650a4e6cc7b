"""The plan of the pipeline experiment: two clusters of two equal stages, whose computing is paced.

Every process makes the same setups from it, so none has to be sent. The window is the design's: the round trip over the
bottleneck, and two (design §4).
"""

from dataclasses import dataclass, replace
from pathlib import Path

from cluster_planner import Plan
from experiments.harness.paced_model import MICRO_BATCH, WIDTH
from experiments.harness.paced_plan import BACKWARD_OVER_FORWARD, endless_setups, equal_stages, round_trip_window
from ravnest.driver.imitation import Imitation
from ravnest.job.config import Job, job_from_mapping
from ravnest.job.materials import capture_job, load_data
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import LinkShape

JOB_FILE = Path(__file__).parents[1] / "harness" / "paced_model.py"
CLUSTERS, STAGES = 2, 2
MBPS, ONE_WAY_S = 20.0, 0.02
LAYERS, UPDATE_EVERY = 8, 4
FORWARD_S = 0.05
MICRO_BATCH_S = (1 + BACKWARD_OVER_FORWARD) * FORWARD_S
LINK = LinkShape(MBPS * 1e6 / 8, ONE_WAY_S)
SEGMENT_BYTES = LAYERS // STAGES * (WIDTH * WIDTH + WIDTH) * 4
BOUNDARY_BYTES = MICRO_BATCH * WIDTH * 4
TOKEN = b"pipeline-tests!!"


@dataclass(frozen=True)
class Site:
    """All that the processes need."""

    plan: Plan
    job: Job
    setups: dict[str, StageSetup]


def average_every(load: float) -> int:
    """Samples of the fleet between rounds, so that averaging takes `load` of what the pipeline leaves of an uplink."""
    free = LINK.bytes_per_s - BOUNDARY_BYTES / MICRO_BATCH_S
    every_s = SEGMENT_BYTES / (free * load)  # a ring of two sends each member's vector once
    return max(1, round(every_s * CLUSTERS * MICRO_BATCH / MICRO_BATCH_S))


def window() -> int:
    return round_trip_window(STAGES, FORWARD_S, BOUNDARY_BYTES, LINK)


def build(load: float, *, emulated: bool) -> Site:
    """`emulated`: with the transport's links; otherwise the network itself is shaped."""
    job = job_from_mapping(
        {
            "model": {"factory": "paced_model:stack", "args": {"layers": LAYERS}},
            "data": {"factory": "paced_model:noise"},
            "loss": "mse",
            "micro_batch": MICRO_BATCH,
            "update_every": UPDATE_EVERY,
            "optimizer": {"name": "sgd", "lr": 1e-3},
            "average_every": average_every(load),
            "max_lag": 2,
            "stop": {"samples": 10**9},
            "evaluate_every": 10**9,
        },
    )
    data = load_data(job, JOB_FILE)
    captured = capture_job(job, JOB_FILE, data)
    plan = equal_stages(
        job,
        JOB_FILE,
        captured,
        clusters=CLUSTERS,
        stages=STAGES,
        forward_s=FORWARD_S,
        link=LINK,
        window=window(),
    )
    setups = endless_setups(plan, job, captured, TOKEN, imitate=Imitation())
    if not emulated:
        setups = {
            name: replace(setup, imitated=replace(setup.imitated, links={}, node=None))
            for name, setup in setups.items()
        }
    return Site(plan, job, setups)
