"""A job beside the plan that was made for it: what the planner chose of it, and whether its file has changed since.

In: a job as its file has it, and a plan, or the job in a plan. Out: the job with the plan's choices, or whether the two
differ.
"""

import os
from pathlib import Path

from cluster_planner import Workload
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, load_job


def as_planned(job: Job, work: Workload) -> Job:
    """The job with numbers in the place of what it leaves to the planner: `max_staleness: auto`."""
    return job if job.max_staleness != "auto" else job.model_copy(update={"max_staleness": work.max_staleness})


def differs(job: Job, work: Workload, path: str | os.PathLike[str]) -> bool:
    """Whether the job.yaml from which the `job` of a plan was read has changed since. `work`: the plan's.

    A file that is gone has not changed, and neither has a module in which a job was made.
    """
    if Path(path).suffix not in (".yaml", ".yml") or not Path(path).is_file():
        return False
    try:
        return as_planned(load_job(path), work) != job
    except InvalidInput:
        return True
