from pathlib import Path

import pytest

from ravnest.errors import InvalidInput
from ravnest.simulator import BandwidthChange, Death, Kill, Scenario, Stall, StallRate
from ravnest.simulator.scenario import TOLD_S, load_scenario
from ring_allreduce.rounds import SILENCE_FLOOR_S

WHOLE = """
compute_jitter: 0.1
link_jitter_ms: 5
control_latency_ms: 20
stalls: [{node: desk, at_s: 600, for_s: 15}]
kills: [{node: desk, at_s: 700}, {node: attic, at_s: 800, noticed_after_s: 0.5}]
deaths: [{node: desk, at_s: 900}, {node: attic, at_s: 1000, noticed_after_s: 1, back_after_s: 60}]
restart_s: 3
stall_rates: [{per_hour: 0.5, for_s: 10}, {per_hour: 2, for_s: 5, nodes: [desk]}]
bandwidth: [{at_s: 1200, up: 0.5}, {at_s: 1800, up: 1, down: 0.25, nodes: [desk, attic]}]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_becomes_a_scenario(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, WHOLE)) == Scenario(
        compute_jitter=0.1,
        link_jitter_s=0.005,
        control_latency_s=0.02,
        stalls=(Stall("desk", 600.0, 15.0),),
        kills=(Kill("desk", 700.0, TOLD_S), Kill("attic", 800.0, 0.5)),
        deaths=(Death("desk", 900.0, SILENCE_FLOOR_S), Death("attic", 1000.0, 1.0, 60.0)),
        restart_s=3.0,
        stall_rates=(StallRate(0.5, 10.0), StallRate(2.0, 5.0, ("desk",))),
        bandwidth=(BandwidthChange(1200.0, up=0.5), BandwidthChange(1800.0, 1.0, 0.25, ("desk", "attic"))),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("compute_jitter: much", "compute_jitter: "),
        ("compute_jiter: 0.1", "compute_jiter: "),
        ("stalls: [{node: desk, at_s: 3}]", r"stalls\[0\].for_s: "),
        ("kills: [{node: desk, at_s: -1}]", r"kills\[0\].at_s: "),
        ("deaths: [{node: desk, at_s: -1}]", r"deaths\[0\].at_s: "),
        ("stall_rates: [{per_hour: 0, for_s: 3}]", r"stall_rates\[0\].per_hour: "),
        ("bandwidth: [{at_s: 1, nodes: []}]", r"bandwidth\[0\].nodes: "),
        ("- 3", "holds a list"),
    ],
)
def test_errors_name_the_file_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(Exception, match=said) as caught:
        load_scenario(path)
    assert str(path) in str(caught.value)
    assert getattr(caught.value, "exit_code", None) == InvalidInput.exit_code
