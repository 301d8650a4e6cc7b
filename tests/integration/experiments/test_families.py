"""`python -m experiments.families --quick`: families are planned, trained and compared, or refused."""

from pathlib import Path

import pytest

from experiments.families.__main__ import main
from tests.support.experiments import check_form, claims_of, run_quick

PARTS = ("vectors", "refusals")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_family_equals_plain_pytorch_or_is_refused(tmp_path: Path) -> None:
    document = run_quick(main, tmp_path, "--only", *PARTS)
    check_form(document, "families", PARTS)
    vectors, refusals = (claims_of(document["parts"][name]) for name in PARTS)
    assert vectors["reported"]["held"], vectors
    assert vectors["exact"]["held"], vectors
    assert refusals["refused"]["held"], refusals
    assert refusals["reported"]["held"] is None
