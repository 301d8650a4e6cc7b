import json

import pytest

from cluster_planner import Workload
from ravnest.job.config import job_from_mapping
from ravnest.job.job_of_plan import as_planned, differs

LEAST = {"model": {"factory": "model:gpt"}, "data": {"factory": "data:text"}, "stop": {"samples": 1000}}


@pytest.fixture
def work() -> Workload:
    return Workload(
        micro_batch=8,
        update_every=8,
        max_staleness=3,
        average_every=4096,
        max_lag=1,
        optimizer_state_bytes_per_parameter_byte=2.0,
        process_bytes=0,
    )


def test_a_job_file_that_was_edited_since_planning_is_noticed(tmp_path, work):
    job = job_from_mapping(LEAST)
    path = tmp_path / "job.yaml"
    assert not differs(job, work, str(path))  # gone: the plan is complete in itself
    path.write_text(json.dumps(job.model_dump(mode="json")))
    assert not differs(job, work, str(path))
    path.write_text(json.dumps({**job.model_dump(mode="json"), "seed": job.seed + 1}))
    assert differs(job, work, str(path))
    path.write_text("model: [")
    assert differs(job, work, str(path))


def test_what_the_planner_chose_is_no_change_of_the_file(tmp_path, work):
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({**LEAST, "max_staleness": "auto"}))
    assert not differs(job_from_mapping({**LEAST, "max_staleness": 3}), work, path)
    assert differs(job_from_mapping({**LEAST, "max_staleness": 1}), work, path)


def test_a_number_of_the_job_stays(work):
    job = job_from_mapping({**LEAST, "max_staleness": 1})
    assert as_planned(job, work) is job
    chosen = as_planned(job_from_mapping({**LEAST, "max_staleness": "auto"}), work)
    assert (chosen.max_staleness, chosen.staleness_bound) == (3, 3)
