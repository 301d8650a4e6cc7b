import os
from pathlib import Path

import pytest

from ravnest.job.config import job_from_mapping
from ravnest.profiling.machine_facts import check_job, machine_facts, own_addresses, source_digest
from tests.support.local import JOB_FILE, tiny_job


def test_the_facts_are_those_of_this_machine() -> None:
    facts = machine_facts()
    assert facts.cores == len(os.sched_getaffinity(0))
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert source_digest() in facts.ravnest
    assert facts.versions["torch"] != "not installed"
    assert machine_facts().machine_id == facts.machine_id


def test_this_machine_knows_its_own_addresses() -> None:
    assert "127.0.0.1" in own_addresses()
    assert "192.0.2.1" not in own_addresses()


def test_a_job_that_works_here_has_no_problems_and_data_with_a_digest() -> None:
    checked = check_job(tiny_job(), str(JOB_FILE), reads_data=True)
    assert checked.problems == ()
    assert checked.data is not None
    assert checked.data.train > 0
    assert checked.data.digest
    assert check_job(tiny_job(), str(JOB_FILE), reads_data=True) == checked


def test_data_is_read_only_where_it_is_needed() -> None:
    assert check_job(tiny_job(), str(JOB_FILE), reads_data=False).data is None


@pytest.mark.parametrize("key", ["model", "data"])
def test_code_that_is_missing_is_a_problem_that_names_its_key(tmp_path: Path, key: str) -> None:
    given = tiny_job().model_dump(mode="json")
    given[key] = {"factory": "no_such_module:make"}
    checked = check_job(job_from_mapping(given), str(tmp_path / "job.yaml"), reads_data=False)
    assert any(f"{key}.factory" in line for line in checked.problems)
