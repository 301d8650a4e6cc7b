"""What a driver writes down of its session."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ravnest.driver.remembering import beginning, changing, state_of
from ravnest.driver.run_rings import RunRings
from ravnest.driver.session import run_control
from ravnest.driver.session_keys import run_keys
from ravnest.recovery import NodesLeft
from ravnest.stage.setup import StageAddress
from ring_allreduce.transport import PeerAddress
from tests.support.local import setups_of, tiny_job


def test_it_names_who_trains_and_where_and_how_far_the_session_has_come(tmp_path: Path) -> None:
    job = tiny_job()
    setups, plan = setups_of(job, parts=(2, 1))
    control = run_control(plan, job, setups, 10, 240, None)
    control.lost("c1.s0", "killed")
    places = {name: StageAddress(PeerAddress("127.0.0.1", 5000, 5001), "here", 7, 2, began_s=3.0) for name in setups}
    (tmp_path / "plan.yaml").write_text("a plan")
    prepared = cast(
        "Any", SimpleNamespace(start=None, fingerprint="f", folder=SimpleNamespace(plan=tmp_path / "plan.yaml"))
    )
    keys = run_keys([*setups, "driver"])
    fixed = beginning(prepared, 2, "192.0.2.1:6379", b"t" * 16, keys, True, {})
    clock = SimpleNamespace(training_s=12.5)
    left, again = NodesLeft(), NodesLeft()
    left.leave("n01")
    left.leave("n02", noticed=True)
    state = state_of(fixed, changing(control, RunRings(plan, setups), places, {"c0.s1": 3}, clock, left), {"n00": 4})
    assert sorted(state.stages) == ["c0.s0", "c0.s1"]
    assert (state.stages["c0.s1"].node, state.stages["c0.s1"].pid, state.stages["c0.s1"].born) == ("n01", 7, 3)
    again.take(state.left, state.noticed)
    assert (again.names, again.noticed) == ({"n01", "n02"}, {"n02"}), "a run without others may use it"
    assert (state.term, state.epoch, state.elapsed_s, state.start.rounds) == (2, 1, 12.5, 0)
    assert bytes.fromhex(state.token) == b"t" * 16
    assert state.keys is not None
    assert state.keys["driver"] == (keys["driver"].own.public, keys["driver"].own.secret)
