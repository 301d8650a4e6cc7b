"""`python -m experiments.churn --quick`: the parts that no other test has.

The simulated traces are the simulator's (tests/unit/ravnest/simulator), and injected faults need root.
"""

from pathlib import Path

import pytest

from experiments.churn.__main__ import main
from tests.support.experiments import check_form, run_quick


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_recorded_trace_is_rehearsed_beside_the_best_plans(tmp_path: Path) -> None:
    document = run_quick(main, tmp_path, "--only", "rehearsed_trace")
    check_form(document, "churn", ["rehearsed_trace"])
    shares, counts = document["parts"]["rehearsed_trace"]["tables"]
    assert [name for name, _ in shares["rows"]] == ["rehearsed", "simulated", "knowable", "rehearsed, of the knowable"]
    rows = dict(counts["rows"])
    assert rows["rehearsed, samples in the anchor at the end"] > 0
    assert rows["best plan at each moment, samples"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_optimizer_state_is_tried(tmp_path: Path) -> None:
    document = run_quick(main, tmp_path, "--only", "optimizer_states")
    check_form(document, "churn", ["optimizer_states"])
    assert len(document["parts"]["optimizer_states"]["tables"][0]["rows"]) == 4
