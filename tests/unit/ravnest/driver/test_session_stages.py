"""The stages of a session with stand-ins for Ray: whoever fails to take a run over leaves it as it is."""

import contextlib
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ravnest.driver import session_stages
from ravnest.driver.ray.processes_here import ProcessesHere
from ravnest.driver.run_store import RunStore, TakenOver, load_state
from ravnest.driver.session_stages import started, taken_over
from ravnest.driver.taking_over import Answers, NothingToTakeOver
from ravnest.errors import InvalidInput
from ravnest.stage import messages as m
from ravnest.stage.setup import StageAddress
from ring_allreduce.transport import InProcessNetwork, PeerAddress
from tests.support.local import setups_of, tiny_job
from tests.support.takeover import STATE, position

STAGES = ("c0.s0", "c0.s1", "c1.s0", "c1.s1")


class Processes:
    """Processes that are there; what is done about them is kept."""

    host = "127.0.0.1"

    def __init__(self):
        self.done, self.adopted = [], ProcessesHere({})

    def place(self, plan, setups, nodes):
        self.done.append("placed")

    def prepare(self, timeout_s):
        return {stage: StageAddress(PeerAddress("127.0.0.1", 5000, 5001), "here", 1, 1) for stage in STAGES}

    def start(self, peers):
        self.done.append("started")

    def adopt(self, stages, setups):
        self.done.append("adopted")

    def release(self):
        self.done.append("released")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    setups, plan = setups_of(tiny_job(), parts=(2, 2))
    network = InProcessNetwork()
    driver = network.endpoint(m.DRIVER, m.codec())
    ends = {stage: network.endpoint(stage, m.codec()) for stage in STAGES}
    network.connect_all()
    monkeypatch.setattr(driver, "connect", lambda peers: None)
    monkeypatch.setattr(session_stages, "driver_endpoint", lambda setup, host, keys: driver)
    monkeypatch.setattr(session_stages, "states_for", lambda *arguments: {})
    monkeypatch.setattr(session_stages, "check_same_data", lambda *arguments: None)
    monkeypatch.setattr(session_stages, "ask", lambda *arguments: Answers(dict.fromkeys(STAGES, position(24)), []))
    path, processes = tmp_path / "driver.json", Processes()
    RunStore(path, 0).save(STATE, plan)
    folder = SimpleNamespace(driver=path)
    prepared = SimpleNamespace(plan=plan, job=None, resumed=None, initial=None, folder=folder)

    def heard(stage):
        return [each.message for each in ends[stage].poll(0.0)]

    def take():
        return taken_over(prepared, STATE, processes, setups, None, SimpleNamespace(on=lambda event: None))

    return SimpleNamespace(**locals())


def waits(bench):
    """Whether the run is as the driver before has left it, so that the next can take it over."""
    found = load_state(bench.path)
    silent = [bench.heard(stage) for stage in STAGES] == [[]] * 4
    return silent and found is not None and bench.processes.done == ["adopted", "released"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")])
def test_one_that_is_ended_before_the_stages_have_answered_leaves_them_waiting(bench, monkeypatch, error):
    def ask(*arguments):
        raise error

    monkeypatch.setattr(session_stages, "ask", ask)
    with pytest.raises(type(error)), bench.take():
        pass
    assert waits(bench)


def test_one_that_the_disk_refuses_leaves_the_run_as_it_is(bench, monkeypatch):
    def refused(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ravnest.driver.run_store.save_plan", refused)
    with pytest.raises(InvalidInput, match="No space left on device"), bench.take():
        pass
    assert waits(bench)
    assert load_state(bench.path) == STATE


def test_one_that_cannot_listen_leaves_the_run_as_it_is(bench, monkeypatch):
    def refused(*arguments):
        raise InvalidInput("cannot listen", key="--address")

    monkeypatch.setattr(session_stages, "driver_endpoint", refused)
    with pytest.raises(InvalidInput, match="cannot listen"), bench.take():
        pass
    assert waits(bench)


def fail(session, look=lambda stages: None):
    """A session that ends by an error, after `look` was told of its stages."""
    with session as stages:
        look(stages)
        raise ZeroDivisionError


def test_one_that_has_taken_the_run_over_tells_the_stages_to_stop_when_it_fails(bench):
    seen = []
    with pytest.raises(ZeroDivisionError):
        fail(bench.take(), seen.append)
    assert [(stages.term, stages.standing.whole) for stages in seen] == [(1, ["c0", "c1"])]
    assert [bench.heard(stage) for stage in STAGES] == [[m.Stop()]] * 4
    assert list(bench.tmp_path.iterdir()) == []


def test_what_is_left_of_a_run_without_a_whole_cluster_is_told_to_stop(bench, monkeypatch):
    monkeypatch.setattr(session_stages, "ask", lambda *arguments: Answers({"c0.s0": position(24)}, []))
    with pytest.raises(NothingToTakeOver), bench.take():
        pass
    assert bench.heard("c0.s0") == [m.Stop()]
    assert load_state(bench.path) is None


def test_of_two_that_take_a_run_over_at_once_the_later_has_it(bench):
    seen = []

    def another(first):
        with contextlib.suppress(ZeroDivisionError):
            fail(bench.take(), lambda second: seen.extend((first.term, second.term, first.store.is_anothers)))
        RunStore(bench.path, 2).save(replace(STATE, term=2), bench.plan)  # as if the second went on
        bench.processes.done.clear()
        for stage in STAGES:
            bench.heard(stage)

    with pytest.raises(TakenOver):
        fail(bench.take(), another)
    assert seen == [1, 2, True]
    assert bench.processes.done == ["released"]
    assert [bench.heard(stage) for stage in STAGES] == [[]] * 4


def test_stages_that_are_started_anew_are_told_to_stop_when_the_session_fails(bench):
    seen = []
    with pytest.raises(ZeroDivisionError):
        fail(started(bench.prepared, bench.processes, bench.setups, {}, None), seen.append)
    assert [(stages.term, stages.standing, sorted(stages.peers)) for stages in seen] == [(0, None, list(STAGES))]
    assert bench.processes.done == ["placed", "started"]
    assert [bench.heard(stage) for stage in STAGES] == [[m.Stop()]] * 4
