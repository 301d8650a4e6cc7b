"""`ravnest run --resume` where the data have changed, up to the moment at which Ray would start."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from cluster_planner import save_plan
from ravnest.driver import instructions as ins
from ravnest.driver import preparation, training_run
from ravnest.driver.preparation import Prepared, writer_opener
from ravnest.errors import Interrupted
from ravnest.job.materials import capture_job, load_data
from tests.support.commands import JOBS, ravnest
from tests.support.local import job_in, parts_of_plan, plan_with

DATA = """
from pathlib import Path
from tiny import words


def drawn():
    data, change = words(), Path(__file__).with_name("change.txt")
    if change.is_file():
        data.train.tensors[0][int(change.read_text())] += 1
    return data
"""
HASHED = 0
"""The first sample is among those of which the checkpoint has a hash."""


class Sessions:
    """Runs of one folder, whose sessions write a checkpoint and are interrupted then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: list[Prepared] = []
        shutil.copy(JOBS / "tiny.py", folder)
        (folder / "changing.py").write_text(DATA)
        job = job_in(
            folder,
            model={"factory": "tiny:gpt", "args": {"layers": 1}},
            data={"factory": "changing:drawn"},
            stop={"samples": 640},
        )
        self.captured = capture_job(job, job.file, load_data(job, job.file))
        plan = plan_with(job, self.captured, [[2], []])
        save_plan(replace(plan, job_file=str(job.file)), folder / "plan.yaml")

    def train(self, prepared: Prepared, *_: object, **__: object) -> Any:
        self.begun.append(prepared)
        plan = prepared.plan
        opener = writer_opener(prepared.folder, lambda: plan, prepared.job, prepared.resumed, prepared.fingerprint)
        writer = opener(ins.BeginCheckpoint(1, 64 * len(self.begun), {"c0": 1, "c1": 0}))
        for ring in range(len(plan.rings)):
            writer.add_segment(ring, {f"w{ring}": torch.ones(2)})
        for cluster in plan.clusters:
            for stage in range(len(cluster.stages)):
                writer.add_optimizer(cluster.name, stage, {})
        writer.commit(parts_of_plan(plan))
        raise Interrupted("the test ends it")

    def run(self, *options: str) -> CompletedProcess[str]:
        return ravnest(self.folder, "run", "plan.yaml", "--out", "r", *options)

    def change(self, sample: int) -> None:
        """From now on the data have as many samples as before, of which this one is another."""
        (self.folder / "change.txt").write_text(str(sample))


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = {name: sys.modules.pop(name) for name in ("tiny", "changing") if name in sys.modules}
    made = Sessions(tmp_path)
    monkeypatch.setattr(training_run, "train", made.train)
    monkeypatch.setattr(preparation, "capture_job", lambda *_: made.captured)  # once is enough: it takes long
    yield made
    for name in ("tiny", "changing"):
        sys.modules.pop(name, None)
    sys.modules.update(before)


def test_a_resume_with_other_data_of_the_same_length_is_refused_unless_told_otherwise(sessions: Sessions) -> None:
    assert sessions.run().returncode == Interrupted.exit_code
    sessions.change(HASHED)

    refused = sessions.run("--resume")
    assert refused.returncode == 2
    assert "r: data: the checkpoint was made with other data (240 + 10 samples, " in refused.stderr
    assert "--other-data" in refused.stderr
    assert len(sessions.begun) == 1  # nothing was started

    assert sessions.run("--resume", "--other-data").returncode == Interrupted.exit_code
    went_on = sessions.begun[-1].resumed
    assert went_on is not None
    assert went_on.checkpoint.folder.name == "checkpoint-000001"
    # The checkpoint that was made with them is of these data.
    assert sessions.run("--resume").returncode == Interrupted.exit_code
    assert len(sessions.begun) == 3
