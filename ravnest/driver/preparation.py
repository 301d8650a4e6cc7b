"""All that can be known of a run before anything is started or written: its job, its data, the captured model, where it
goes on. Whatever is wrong with the user's input is told here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_planner import Plan
from ravnest.checkpoints.run_folder import RunFolder, choose_folder
from ravnest.driver.initial_state import ResumedRun
from ravnest.driver.observe import report
from ravnest.driver.stage_setups import check_fingerprint
from ravnest.errors import InvalidInput
from ravnest.job.config import Job, differs, job_from_mapping
from ravnest.job.materials import capture_job, check_shares, load_data, total_samples
from ravnest.job.pretrained import PretrainedWeights, pretrained_weights
from ravnest.planning.workload import check_workload
from ravnest.splitting import CapturedModel


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start."""

    plan: Plan
    plan_path: Path
    job: Job
    data: Any
    captured: CapturedModel
    folder: RunFolder
    resumed: ResumedRun | None
    pretrained: PretrainedWeights | None
    """Of a new run whose job names some."""
    total_samples: int | None
    """Of the fleet, at which the run ends; None when it ends by time."""

    @property
    def rounds_before(self) -> int:
        """Those of the sessions that are resumed."""
        return 0 if self.resumed is None else self.resumed.rounds


def prepare(plan: Plan, plan_path: Path, out_dir: Path | None, *, resume: bool, observer: report.Observer) -> Prepared:
    """Raises InvalidInput; nothing is written."""
    job = job_from_mapping(plan.job, path=str(plan_path), under="job.")
    check_workload(plan, job, plan_path)
    folder = choose_folder(out_dir, resume=resume)
    resumed = ResumedRun.load(folder, plan, job) if resume else None
    if differs(job, plan.job_file):
        observer.on(
            report.NoticeEvent(f"{plan.job_file} has changed since the plan was made: the job in the plan counts")
        )
    if not Path(plan.job_file).parent.is_dir():
        raise InvalidInput(
            f"the job's folder {Path(plan.job_file).parent} is gone: plan again where the job lies now",
            path=str(plan_path),
            key="job_file",
        )
    observer.on(report.PhaseEvent("preparing", "reading the data and capturing the model"))
    data = load_data(job, plan.job_file)
    captured = capture_job(job, plan.job_file, data)
    check_fingerprint(plan, captured, plan_path)
    pretrained = None if resume else pretrained_weights(job, plan.job_file, captured)
    total = total_samples(job, len(data.train), plan.job_file)
    check_shares(job, plan.job_file, plan, len(data.train))
    if resumed is not None and total is not None and resumed.samples >= total:
        raise InvalidInput(
            f"the run has made {resumed.samples} of {total} samples: nothing is left to do; plan again with a later"
            " `stop` to go on",
            path=str(folder.path),
        )
    return Prepared(plan, plan_path, job, data, captured, folder, resumed, pretrained, total)


def check_same_data(
    prepared: Prepared, samples: Mapping[str, tuple[int, int] | None], nodes: Mapping[str, str]
) -> None:
    """Raises InvalidInput where a stage reads other numbers of samples than are read here: stages would then take
    different samples for the same one. `samples`: (training, held-out) by stage, `nodes`: where each runs."""
    here = (len(prepared.data.train), len(prepared.data.held_out))
    for stage, found in samples.items():
        if found is not None and found != here:
            raise InvalidInput(
                f"{nodes[stage]!r} reads {found[0]:,} training and {found[1]:,} held-out samples, and this machine"
                f" {here[0]:,} and {here[1]:,}: all must read the same data (`data` of that node in nodes.yaml)",
                path=str(prepared.plan_path),
                key=f"nodes.{nodes[stage]}.data",
            )
