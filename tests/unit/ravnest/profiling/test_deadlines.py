"""docs/deadlines.md names every deadline of profile and doctor, with its value."""

from pathlib import Path
from types import ModuleType

import pytest

from ravnest.profiling import agent, links, probe_line
from ravnest.profiling import doctor as doctoring
from ravnest.profiling import profile as profiling

ROOT = Path(__file__).parents[4]
ROWS = [line for line in (ROOT / "docs/deadlines.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
DEADLINES = {
    agent: ["CONNECT_S"],
    doctoring: ["FACTS_S", "JOB_S", "LISTEN_S", "REACH_S", "PING_DEADLINE_S", "PINGS_S"],
    links: ["LISTEN_S", "PING_DEADLINE_S", "TRANSFER_GRACE_S"],
    probe_line: ["_CLOSE_S"],
    profiling: ["FACTS_S", "SPEED_DEADLINE_S"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in DEADLINES.items() for name in names])
def test_a_deadline_is_in_the_table_with_its_value(module: ModuleType, name: str) -> None:
    file = f"{module.__name__.rpartition('.')[2]}.py"
    rows = [row for row in ROWS if f"`{name}`" in row and file in row]
    assert any(f"{getattr(module, name):g} s" in row for row in rows), (file, name)
