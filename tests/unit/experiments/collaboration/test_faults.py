import pytest

from experiments.collaboration import faults
from experiments.collaboration.virtual_network import Machine, VirtualNetwork


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        ("killed", "sending"),
        ("power cut", "waiting"),
        ("frozen for 15 s", "joining"),
        ("connection cut", "taking"),
        ("garbage", "computing"),
        ("NaN", "sending"),
        ("wrong shape", "sending"),
        ("promises kept by none", "computing"),
    ],
)
def test_a_fault_of_one_volunteer_is_nobody_elses(kind: str, moment: str, delayed: bool) -> None:
    found = faults.injected(kind, moment, 0, delayed)
    assert found.wrong == ""
    assert found.met
    assert found.longest_s < 60.0
    assert 1.0 <= found.largest <= 1.1


def test_a_collaboration_whose_machines_all_die_is_found_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: it is shown a fault that no collaboration bears."""

    def kill_all(net: VirtualNetwork, victim: Machine) -> None:
        for machine in net.machines:
            net.kill(machine)

    monkeypatch.setattr(faults, "KINDS", {"all killed": faults.Fault(kill_all, comes_back=True)})
    found = faults.injected("all killed", "sending", 0)
    assert found.met
    assert found.wrong
