"""`python -m experiments.wire --quick`: all parts work. One of them rehearses with real processes, and stands alone."""

from pathlib import Path

import pytest

from experiments.wire import averaging, tried_rounds
from experiments.wire.__main__ import PARTS, main
from experiments.wire.bottlenecks import NARROWINGS
from experiments.wire.tried_bottlenecks import WAYS as NARROW_WAYS
from experiments.wire.tried_cuts import PAIRS
from experiments.wire.tried_rounds import WAYS
from tests.support.experiments import check_form, claims_of, run_quick


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_parts_run_and_judge_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (averaging, tried_rounds):
        monkeypatch.setattr(module, "ROUND_UPDATES", 2)
    parts = [name for name in PARTS if name != "slow_links"]
    document = run_quick(main, tmp_path, "--only", *parts)
    check_form(document, "wire", parts)
    judged = {name: claims_of(part).keys() - {"bytes"} for name, part in document["parts"].items()}
    assert judged == {
        "cuts": {"bfloat16", "int8", "int4"},
        "bottlenecks": {*NARROWINGS} - {"float32"},
        "advised": {"int4"},
        "averaging": {"bfloat16", "int8", "int4", "sparse"},
        "entropy": {"saves", "pays"},
        "tried_cuts": {name for name in PAIRS if name != "float32" and "rank" not in name},
        "tried_bottlenecks": {name for name in NARROW_WAYS if name != "float32"},
        "tried_rounds": {name for name in WAYS if name != "float32"},
    }
    for part in (document["parts"][name] for name in ("cuts", "bottlenecks", "averaging")):
        assert [row[2] for row in part["tables"][0]["rows"]] == sorted(row[2] for row in part["tables"][0]["rows"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_forms_are_rehearsed_on_slow_links(tmp_path: Path) -> None:
    document = run_quick(main, tmp_path, "--only", "slow_links")
    check_form(document, "wire", ["slow_links"])
    assert claims_of(document["parts"]["slow_links"]).keys() == {"within 1%", "at any loss", "predicted"}
