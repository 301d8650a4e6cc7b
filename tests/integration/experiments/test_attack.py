"""`python -m experiments.attack --quick`: its parts work, and what does not depend on speed holds.

The part `fuzz` is left out: `make fuzz` and tests/fuzz try the same readers.
"""

from pathlib import Path

import pytest

from experiments.attack.__main__ import PARTS, main
from tests.support.experiments import check_form, claims_of, run_quick

QUICK = [part for part in PARTS if part != "fuzz"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_part_runs_and_no_stage_is_lost(tmp_path: Path) -> None:
    document = run_quick(main, tmp_path, "--only", *QUICK)
    check_form(document, "attack", QUICK)
    attacked = claims_of(document["parts"]["attack"])
    assert attacked["lost"]["held"]
    assert attacked["memory"]["held"]
    phases, strangers = (table["rows"] for table in document["parts"]["attack"]["tables"])
    assert [row[1] for row in phases] == ["no", "yes"]
    assert all(row[2] > 0 for row in phases)
    assert len(strangers) == 7
    assert all(count > 0 for _, count in strangers)
    assert all(claims_of(document["parts"][part])["nobody honest"]["held"] for part in ("liars", "digits"))
    rates = [row[1:3] for row in document["parts"]["encryption"]["tables"][0]["rows"]]
    assert all(clear > 0 and encrypted > 0 for clear, encrypted in rates)


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1e9"])
def test_an_attack_lasts_some_minutes(minutes: str) -> None:
    with pytest.raises(SystemExit):
        main(["--minutes", minutes])
