"""`python -m experiments.gpu --quick`: a tiny model is profiled, planned and run, on the processor without a GPU."""

from pathlib import Path

import pytest

from experiments.gpu.__main__ import main
from tests.support.experiments import check_form, claims_of, run_quick


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_planned_and_run_is_set_beside_a_plain_loop(tmp_path: Path) -> None:
    document = run_quick(main, tmp_path)
    check_form(document, "gpu", ["one_stage"])
    assert claims_of(document["parts"]["one_stage"]).keys() == {
        "as fast as a plain loop",
        "as planned",
        "within its memory",
    }
    (table,) = document["parts"]["one_stage"]["tables"]
    assert all(row[1] > 0 for row in table["rows"])
