import pytest

from experiments.churn.fleets import rented, sessions


@pytest.mark.parametrize(("kind", "comes", "goes"), [("g4dn", 79, 74), ("p3", 177, 167)])
def test_the_recorded_traces_are_whole(kind: str, comes: int, goes: int) -> None:
    changes = rented(kind, speed=1.0, notice_s=0.0, noticed_after_s=20.0)
    kinds = [change.kind for change in changes]
    assert (kinds.count("back"), kinds.count("gone")) == (comes, goes)
    fast = rented(kind, speed=10.0, notice_s=0.0, noticed_after_s=20.0)
    assert fast[-1].at_s == pytest.approx(changes[-1].at_s / 10)


def test_home_sessions_are_of_a_seed_and_as_long_as_they_are_said_to_be() -> None:
    changes = sessions(8, 400.0, 4.0, 21.0, seed=1)
    assert changes == sessions(8, 400.0, 4.0, 21.0, seed=1)
    assert changes != sessions(8, 400.0, 4.0, 21.0, seed=2)
    came: dict[str, float] = {}
    stays_h = []
    for change in changes:
        if change.kind == "back":
            came[change.node] = change.at_s
        else:
            stays_h.append((change.at_s - came[change.node]) / 3600)
    assert max(stays_h) == pytest.approx(21.0)
    assert sum(stays_h) / len(stays_h) == pytest.approx(4.0, rel=0.2)
    assert sum(change.at_s == 0 for change in changes) == 8
