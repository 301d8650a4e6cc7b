"""`python -m experiments.allreduce --quick`: all parts work, and what does not depend on speed holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.allreduce import faults, pipeline
from experiments.allreduce.__main__ import main
from tests.support.experiments import check_form, claims_of, run_quick

ROOT = Path(__file__).parents[3]
PARTS = ["exactness", "stability", "bytes", "loopback", "shaped", "rings", "pipeline", "faults"]
TIMELESS = {
    "exactness": {"equal bytes", "float64", "int8 feedback"},
    "stability": {"progress", "naive"},
    "bytes": {"bytes"},
    "loopback": {"equal"},
    "faults": {"hung", "wrong"},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_part_runs_and_what_does_not_depend_on_speed_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "QUICK", ("killed", "NaN"))  # tests/faults/test_group.py has the others
    monkeypatch.setattr(pipeline, "QUICK_SECONDS", 2.0)
    document = run_quick(main, tmp_path)
    check_form(document, "allreduce", PARTS)
    for name, names in TIMELESS.items():
        claims = claims_of(document["parts"][name])
        assert all(claims[claim]["held"] is True for claim in names), claims
    text = (tmp_path / "RESULT.md").read_text(encoding="utf-8")
    assert all(f"## {part['title']}" in text for part in document["parts"].values())


def test_one_part_again_keeps_the_others_and_its_output_is_json(tmp_path: Path) -> None:
    """As a process of its own: standard output holds the results, and nothing else."""
    (tmp_path / "result.json").write_text(json.dumps({"title": "", "parts": {"loopback": STORED}}))
    command = [sys.executable, "-m", "experiments.allreduce", "--quick", "--out", str(tmp_path), "--json"]
    done = subprocess.run(
        [*command, "--only", "stability"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "result.json").read_text())
    parts = json.loads(done.stdout)["parts"]
    assert list(parts) == ["stability", "loopback"]
    assert parts["loopback"] == STORED


STORED = {
    "name": "loopback",
    "title": "Loopback",
    "claims": [{"name": "c", "statement": "s", "target": "t", "measured": "m", "held": True}],
    "tables": [],
    "panels": [],
    "notes": [],
    "command": "earlier",
    "machine": {"cpu": "z80"},
    "date": "2026-01-01T00:00:00+00:00",
    "seconds": 1.0,
}
