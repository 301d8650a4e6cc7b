"""A scenario is acted out by signals to processes, and by requests as users make them."""

import signal
from collections.abc import Iterable

import pytest

from ravnest.driver.acting import Acting
from ravnest.driver.node_requests import NodeRequest
from ravnest.errors import InvalidInput
from ravnest.recovery import NodesLeft
from ravnest.simulator import BandwidthChange, Death, Join, Kill, Leave, Scenario, Slow, Stall, StallRate

STOP, GO_ON, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL


class Processes:
    """Each node runs a stage of its own name."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, signal.Signals]] = []
        self.renamed: set[str] = set()
        self.gone: list[str] = []

    def on_node(self, node: str) -> list[str]:
        return [f"{node}.again" if node in self.renamed else node]

    def send(self, stages: Iterable[str], what: signal.Signals) -> None:
        self.sent += [(stage, what) for stage in sorted(stages)]

    def machine_gone(self, node: str) -> None:
        self.gone.append(node)


def acted(
    scenario: Scenario, until_s: float, speed: float = 1.0, processes: Processes | None = None
) -> tuple[list[tuple[float, object]], NodesLeft]:
    """What is done in each second after the 100th, until then, and who is away at the end."""
    acting, heard, left = Acting(scenario, speed), processes or Processes(), NodesLeft()
    done: list[tuple[float, object]] = []
    for second in range(int(until_s) + 1):
        requests = acting.turn(100.0 + second, heard, left)
        done += [(float(second), each) for each in (*heard.sent, *requests)]
        for each in requests:
            (left.back if each.kind == "join" else left.leave)(each.node)
        heard.sent.clear()
    return done, left


def test_a_machine_that_is_lost_without_a_word_stands_still_and_has_lost_what_it_held_when_it_is_back() -> None:
    done, left = acted(Scenario(deaths=(Death("desk", 10.0, back_after_s=30.0),)), 60.0)
    assert done == [(10.0, ("desk", STOP)), (40.0, ("desk", KILL)), (40.0, NodeRequest("join", "desk"))]
    assert not left.names
    _, left = acted(Scenario(deaths=(Death("desk", 10.0),)), 60.0)
    assert left.names == {"desk"}, "nothing is started there"


def test_what_was_started_there_since_is_not_killed_when_it_is_back() -> None:
    heard = Processes()
    heard.on_node = lambda node: ["desk"] if not heard.renamed else ["other"]  # type: ignore[method-assign]
    acting, left = Acting(Scenario(deaths=(Death("desk", 1.0, back_after_s=1.0),)), 1.0), NodesLeft()
    for now_s in (0.0, 1.0):
        acting.turn(now_s, heard, left)
    heard.renamed.add("desk")
    assert acting.turn(2.0, heard, left) == [NodeRequest("join", "desk")]
    assert heard.sent == [("desk", STOP)]


def test_processes_end_and_machines_leave_with_notice_and_are_gone_then() -> None:
    scenario, heard = Scenario(kills=(Kill("desk", 5.0),), leaves=(Leave("attic", 20.0, notice_s=30.0),)), Processes()
    done, left = acted(scenario, 60.0, processes=heard)
    assert done == [
        (5.0, ("desk", KILL)),
        (20.0, NodeRequest("leave", "attic", "it gives notice")),
        (50.0, ("attic", KILL)),
    ]
    assert left.names == {"attic"}
    assert heard.gone == ["attic"], "with what waited there; a machine whose process ended is there"


def test_who_comes_is_not_there_at_first_and_what_stalls_goes_on() -> None:
    scenario = Scenario(joins=(Join("attic", 20.0),), stalls=(Stall("desk", 3.0, 4.0),))
    assert Acting(scenario, 1.0).absent == {"attic"}
    assert Acting(scenario, 1.0).there(["attic", "desk"]) == {"desk"}
    done, left = acted(scenario, 10.0)
    assert done == [(3.0, ("desk", STOP)), (7.0, ("desk", GO_ON))]
    assert left.names == {"attic"}
    done, left = acted(scenario, 20.0)
    assert done[-1] == (20.0, NodeRequest("join", "attic", "it has come"))
    assert not left.names


def test_a_machine_that_is_lost_while_it_stalls_does_not_go_on() -> None:
    done, _ = acted(Scenario(stalls=(Stall("desk", 3.0, 4.0),), deaths=(Death("desk", 5.0),)), 20.0)
    assert done == [(3.0, ("desk", STOP)), (5.0, ("desk", STOP))]


def test_the_scenario_goes_as_fast_as_the_rehearsal() -> None:
    done, _ = acted(Scenario(kills=(Kill("desk", 100.0),)), 60.0, speed=10.0)
    assert done == [(10.0, ("desk", KILL))]


@pytest.mark.parametrize(
    ("key", "scenario"),
    [
        ("compute_jitter", Scenario(compute_jitter=0.1)),
        ("stall_rates", Scenario(stall_rates=(StallRate(1.0, 1.0),))),
        ("bandwidth", Scenario(bandwidth=(BandwidthChange(1.0, up=0.5),))),
        ("slow", Scenario(slow=(Slow("desk", 1.0, 2.0),))),
        ("begins_at_hour", Scenario(begins_at_hour=3.0)),
    ],
)
def test_what_cannot_be_acted_out_is_refused(key: str, scenario: Scenario) -> None:
    with pytest.raises(InvalidInput, match="a rehearsal does not act this out") as caught:
        Acting(scenario, 1.0)
    assert caught.value.key == key
    Acting(Scenario(restart_s=3.0, plans_anew=False), 1.0)
