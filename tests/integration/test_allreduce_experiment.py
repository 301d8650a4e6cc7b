"""`python -m experiments.allreduce --quick`, as CI runs it: all parts work, and what does not depend on speed holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ["exactness", "stability", "bytes", "loopback", "shaped", "rings", "pipeline", "faults"]
TIMELESS = {
    "exactness": {"equal bytes", "float64", "int8 feedback"},
    "stability": {"progress", "naive"},
    "bytes": {"bytes"},
    "loopback": {"equal"},
    "faults": {"hung", "wrong"},
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.allreduce", "--quick", "--out", str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
def test_every_part_runs_and_what_does_not_depend_on_speed_holds(tmp_path):
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert list(result["parts"]) == PARTS
    for name, part in result["parts"].items():
        assert part["claims"], name
        for claim in part["claims"]:
            assert claim.keys() == {"name", "statement", "target", "measured", "held"}
            assert claim["held"] in (True, False, None)
            assert claim["measured"]
        assert part["command"] == f"python -m experiments.allreduce --quick --only {name}"
    verdicts = {(name, claim["name"]): claim for name, part in result["parts"].items() for claim in part["claims"]}
    for name, claims in TIMELESS.items():
        for claim in claims:
            assert verdicts[name, claim]["held"] is True, verdicts[name, claim]
    text = (tmp_path / "RESULT.md").read_text()
    assert all(f"## {part['title']}" in text for part in result["parts"].values())
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")


def test_one_part_again_keeps_the_others(tmp_path):
    (tmp_path / "result.json").write_text(json.dumps({"title": "", "parts": {"loopback": STORED}}))
    done = run(tmp_path, "--only", "stability")
    assert done.returncode == 0, done.stderr
    parts = json.loads((tmp_path / "result.json").read_text())["parts"]
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
