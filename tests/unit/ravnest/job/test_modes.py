from typing import Any

import pytest

from ravnest.errors import InvalidInput
from ravnest.job.config import job_from_mapping

JOB: dict[str, Any] = {"model": {"factory": "a:b"}, "data": {"factory": "a:c"}, "stop": {"samples": 1000}}


def test_a_job_is_planned_unless_it_says_otherwise() -> None:
    assert job_from_mapping(JOB).mode == "planned"
    job = job_from_mapping({**JOB, "mode": "collaborative", "target_batch": 256})
    assert (job.mode, job.target_batch) == ("collaborative", 256)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"target_batch": 100}, "target_batch"),
        ({"mode": "collaborative"}, "target_batch"),
        ({"mode": "collaborative", "target_batch": 4}, "target_batch"),
        ({"mode": "collaborative", "target_batch": 64, "update_every": 4}, "update_every"),
        ({"mode": "collaborative", "target_batch": 64, "max_staleness": 1}, "max_staleness"),
        ({"mode": "collaborative", "target_batch": 64, "precision": "float16"}, "precision"),
        ({"mode": "collaborative", "target_batch": 64, "averaging": {"weighting": "equal"}}, "^averaging.weighting"),
        ({"mode": "collaborative", "target_batch": 64, "averaging": {"hierarchical": True}}, "^averaging.hierarchical"),
        ({"mode": "collaborative", "target_batch": 64, "schedule": "gpipe"}, "^schedule"),
        ({"mode": "collaborative", "target_batch": 1001}, "^stop.samples: 1000 is less than one step"),
        ({"mode": "together"}, "mode"),
        ({"delayed_step": True}, "delayed_step"),
        ({"gradient_rank": 4}, "gradient_rank"),
        ({"mode": "collaborative", "target_batch": 64, "gradient_rank": 0}, "gradient_rank"),
        ({"mode": "collaborative", "target_batch": 64, "gradient_rank": 2, "spot_check_share": 0.1}, "spot_check"),
        (
            {"mode": "collaborative", "target_batch": 64, "gradient_rank": 2, "averaging": {"wire": "int8"}},
            "averaging.wire",
        ),
        ({"mode": "collaborative", "target_batch": 64, "delayed_step": "soon"}, "delayed_step"),
        (
            {"mode": "collaborative", "target_batch": 64, "delayed_step": True, "spot_check_share": 0.1},
            "spot_check_share",
        ),
    ],
)
def test_keys_that_do_not_fit_the_mode_are_refused_by_name(keys: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidInput, match=key):
        job_from_mapping({**JOB, **keys})
