"""What keeps a plan from being tried at all is told, too."""

import pytest

from ravnest.errors import InvalidInput
from ravnest.job.initial_weights import make_weights
from ravnest.planning import trial
from tests.support.local import JOB_FILE, captured_job, plan_with, tiny_job


def test_a_folder_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    job = tiny_job()
    captured = captured_job(job)
    monkeypatch.setattr(trial.DurableFiles, "write_tensors", full)
    with pytest.raises(InvalidInput, match=r"No space left on device .*TMPDIR"):
        trial.try_plan(plan_with(job, captured, [[]]), job, JOB_FILE, captured, make_weights(job, JOB_FILE), 0.0)
