import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from ravnest.checkpoints.own_copies import StoredCopy, digest_of
from ravnest.errors import NodeLost, RunFailed
from ravnest.stage import epoch_messages as em
from ravnest.stage import messages as m
from ravnest.stage import process
from ravnest.stage import shadow_messages as shm
from ravnest.stage.executor import InlineExecutor
from ravnest.stage.process import StageProcess, receive_state, with_own_memory
from ring_allreduce.transport import InProcessNetwork, Lane
from tests.support.local import setups_of, tiny_job


@pytest.fixture
def pair():
    network = InProcessNetwork()
    endpoints = [network.endpoint(name, m.codec()) for name in (m.DRIVER, "c0.s1", "c0.s0")]
    network.connect_all()
    return endpoints


class Clock:
    """Each look at it is a quarter of a second later."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 0.25
        return self.now_s


def test_state_is_whole_when_as_much_has_come_as_was_announced(pair):
    driver, stage, neighbour = pair
    driver.send("c0.s1", Lane.PIPELINE, m.Begin(tensors=2, version=7))
    neighbour.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="w"), [torch.zeros(2)])
    driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="w"), [torch.ones(2)])
    driver.send("c0.s1", Lane.BULK, m.StateTensor(part="optimizer", name="w", key="exp_avg"), [torch.ones(2)])
    begin, weights, optimizer = receive_state(stage)
    assert begin.version == 7
    assert weights["w"].tolist() == [1.0, 1.0]
    assert set(optimizer) == {("w", "exp_avg")}


def test_a_tensor_may_come_in_pieces(pair):
    driver, stage, _ = pair
    whole = torch.arange(12, dtype=torch.int32).view(3, 4)
    driver.send("c0.s1", Lane.PIPELINE, m.Begin(tensors=3, version=0))
    head = {"part": "optimizer", "name": "w", "key": "exp_avg", "shape": (3, 4)}
    for start, stop in ((0, 5), (5, 10), (10, 12)):
        driver.send("c0.s1", Lane.BULK, m.StateTensor(**head, start=start), [whole.view(-1)[start:stop]])
    driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="e", shape=(0, 2)), [torch.empty(0)])
    driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="s", shape=()), [torch.tensor([3.0])])
    _, weights, optimizer = receive_state(stage)
    assert torch.equal(optimizer["w", "exp_avg"], whole)
    assert optimizer["w", "exp_avg"].dtype == torch.int32
    assert weights["e"].shape == (0, 2)
    assert weights["s"].tolist() == 3.0


@pytest.mark.parametrize(
    "pieces",
    [
        [((4,), 1, [1.0])],
        [((4,), 0, [1.0]), ((4,), 2, [1.0])],
        [((4,), 0, [1.0]), ((4,), 0, [1.0]), ((4,), 0, [1.0] * 5)],
        [((4,), 0, [1.0]), ((2, 2), 1, [1.0])],
        [((4,), 0, [1.0]), ((4,), 1, [1])],
        [((4,), 0, [1.0] * 4), ((4,), 4, [1.0])],
        [((2, 2), 0, [[1.0, 1.0], [1.0, 1.0]])],
    ],
)
def test_pieces_that_do_not_fit_are_refused(pair, pieces):
    driver, stage, _ = pair
    for shape, start, numbers in pieces:
        message = m.StateTensor(part="weight", name="w", shape=shape, start=start)
        driver.send("c0.s1", Lane.BULK, message, [torch.tensor(numbers)])
    with pytest.raises(RunFailed, match="a piece of w that does not follow those before it"):
        receive_state(stage)


def test_tensors_that_share_memory_get_their_own():
    """A stage changes what it is given, and must not change another weight with it."""
    alone, shared = torch.arange(4.0).view(2, 2).t(), torch.arange(4.0)
    given = {"alone": alone, "a": shared, "b": shared.view(2, 2), "part": torch.arange(6.0)[:3]}
    own = with_own_memory(given)
    assert own["alone"] is alone
    assert own["a"] is shared
    assert all(torch.equal(own[name], given[name]) for name in given)
    assert len({tensor.untyped_storage().data_ptr() for tensor in own.values()}) == 4
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in own.values())


def test_while_it_waits_a_stage_says_that_it_lives_and_how_much_has_come(pair):
    driver, stage, _ = pair
    driver.send("c0.s1", Lane.PIPELINE, m.Begin(tensors=2, version=0))
    driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name="w"), [torch.ones(2)])
    with pytest.raises(NodeLost, match="the driver sent no more state for 30 s"):
        receive_state(stage, deadline_s=30.0, now=Clock())
    told = [delivery.message for delivery in driver.poll(0.0)]
    assert len(told) >= 10
    assert set(told) == {m.Alive(finished=1)}


def test_what_has_come_is_told_at_once_since_the_driver_waits_for_it(pair):
    driver, stage, _ = pair
    told = []

    class Sends:
        """The stage's endpoint, whose clock stands still: nothing is told because time has passed."""

        def poll(self, timeout_s):
            told.extend(delivery.message.finished for delivery in driver.poll(0.0))
            if len(told) < 3:
                name = f"w{len(told)}"
                driver.send("c0.s1", Lane.BULK, m.StateTensor(part="weight", name=name), [torch.ones(2)])
            return stage.poll(timeout_s)

        def send(self, *message):
            stage.send(*message)

    driver.send("c0.s1", Lane.PIPELINE, m.Begin(tensors=3, version=0))
    _, weights, _ = receive_state(Sends(), now=lambda: 1.0)
    assert len(weights) == 3
    assert told == [1, 2]


def test_a_pause_of_this_process_is_not_the_driver_s_silence(pair):
    _, stage, _ = pair
    times = iter([*range(10), *range(7200, 9000)])
    with pytest.raises(NodeLost, match="the driver sent no more state for 30 s"):
        receive_state(stage, deadline_s=30.0, now=lambda: float(next(times)))
    assert 7215 < next(times) < 7300


def test_a_process_begins_with_the_state_and_the_version_that_the_driver_sent(monkeypatch):
    (setup,) = setups_of(tiny_job(), parts=(1,))[0].values()
    network = InProcessNetwork()
    endpoint, driver = network.endpoint(setup.name, m.codec()), network.endpoint(m.DRIVER, m.codec())
    network.connect_all()
    begun = {}

    def record(setup, endpoint, executor, source, weights, optimizer, version, *, copy):
        begun.update(weights=weights, optimizer=optimizer, version=version)
        return SimpleNamespace(stopped=True, stands_by=None)

    monkeypatch.setattr(process, "ZmqEndpoint", lambda name, **arguments: endpoint)
    monkeypatch.setattr(process, "ThreadExecutor", lambda wake, prepare: InlineExecutor())
    monkeypatch.setattr(process, "assemble", record)
    driver.send(setup.name, Lane.PIPELINE, m.Begin(tensors=2, version=7))
    driver.send(setup.name, Lane.BULK, m.StateTensor(part="weight", name="w"), [torch.ones(2)])
    driver.send(setup.name, Lane.BULK, m.StateTensor(part="optimizer", name="w", key="exp_avg"), [torch.zeros(2)])
    StageProcess(setup, "127.0.0.1").run({})
    assert begun["version"] == 7
    assert begun["weights"]["w"].tolist() == [1.0, 1.0]
    assert begun["optimizer"]["w", "exp_avg"].tolist() == [0.0, 0.0]
    assert any(isinstance(each.message, m.StageStarted) for each in driver.poll(0.0))


def test_a_process_takes_from_files_of_its_machine_what_they_hold_unless_it_joins(monkeypatch, tmp_path):
    (setup,) = setups_of(tiny_job(), parts=(1,))[0].values()
    own, file = torch.arange(3.0), tmp_path / "model.safetensors"
    save_file({"stored": own}, file)
    copies = {"w": StoredCopy(str(file), "stored", digest_of(own)), "other": StoredCopy(str(file), "stored", "0" * 64)}
    setup = replace(setup, stored=copies)
    network = InProcessNetwork()
    endpoint, driver = network.endpoint(setup.name, m.codec()), network.endpoint(m.DRIVER, m.codec())
    network.connect_all()
    begun = {}

    def record(setup, endpoint, executor, source, weights, optimizer, version, *, copy):
        begun.update(weights)
        return SimpleNamespace(stopped=True, stands_by=None)

    monkeypatch.setattr(process, "ZmqEndpoint", lambda name, **arguments: endpoint)
    monkeypatch.setattr(process, "ThreadExecutor", lambda wake, prepare: InlineExecutor())
    monkeypatch.setattr(process, "assemble", record)
    driver.send(setup.name, Lane.PIPELINE, m.Begin(tensors=1, version=0))
    driver.send(setup.name, Lane.BULK, m.StateTensor(part="weight", name="other"), [torch.ones(2)])
    made = StageProcess(setup, "127.0.0.1")
    assert made.holds == ("w",)
    made.run({})
    assert {name: tensor.tolist() for name, tensor in begun.items()} == {"w": [0.0, 1.0, 2.0], "other": [1.0, 1.0]}
    joins = replace(setup, transport=replace(setup.transport, joins=True))
    assert StageProcess(joins, "127.0.0.1").holds == ()


def test_a_process_that_fails_ends_its_computing_thread_before_its_endpoint(monkeypatch):
    (setup,) = setups_of(tiny_job(), parts=(1,))[0].values()
    network = InProcessNetwork()
    endpoint, driver = network.endpoint(setup.name, m.codec()), network.endpoint(m.DRIVER, m.codec())
    network.connect_all()
    closed = []

    def lost():
        raise NodeLost("the driver has been silent for 60 s")

    leave = endpoint.close
    monkeypatch.setattr(endpoint, "close", lambda: (closed.append("endpoint"), leave()))
    executor = SimpleNamespace(close=lambda timeout_s: closed.append(("executor", timeout_s)))
    monkeypatch.setattr(process, "ZmqEndpoint", lambda name, **arguments: endpoint)
    monkeypatch.setattr(process, "ThreadExecutor", lambda wake, prepare: executor)
    monkeypatch.setattr(
        process, "assemble", lambda *given, copy: SimpleNamespace(stopped=False, turn=lost, stands_by=None)
    )
    driver.send(setup.name, Lane.PIPELINE, m.Begin(tensors=0, version=0))
    with pytest.raises(NodeLost, match="silent for 60 s"):
        StageProcess(setup, "127.0.0.1").run({})
    (first, deadline_s), last = closed
    assert (first, last) == ("executor", "endpoint")
    assert 0 < deadline_s < 60


def test_a_process_that_is_to_end_tells_the_driver_once_and_goes_on(monkeypatch):
    (setup,) = setups_of(tiny_job(), parts=(1,))[0].values()
    network = InProcessNetwork()
    endpoint, driver = network.endpoint(setup.name, m.codec()), network.endpoint(m.DRIVER, m.codec())
    network.connect_all()
    monkeypatch.setattr(process, "ZmqEndpoint", lambda name, **arguments: endpoint)
    monkeypatch.setattr(process, "ThreadExecutor", lambda wake, prepare: InlineExecutor())
    turns = []

    def turn():
        turns.append(None)
        if len(turns) == 2:
            made.give_notice()
        stage.stopped = len(turns) == 5

    stage = SimpleNamespace(stopped=False, turn=turn, stands_by=None)
    monkeypatch.setattr(process, "assemble", lambda *given, copy: stage)
    driver.send(setup.name, Lane.PIPELINE, m.Begin(tensors=0, version=0))
    made = StageProcess(setup, "127.0.0.1")
    made.run({})
    assert len(turns) == 5
    assert sum(isinstance(each.message, em.NoticeGiven) for each in driver.poll(0.0)) == 1


def test_a_warm_spare_s_process_takes_the_place_under_the_stage_s_name(monkeypatch):
    network = InProcessNetwork()
    driver, heard = network.endpoint(m.DRIVER, m.codec()), []

    def bound(name, **arguments):
        endpoint = network.endpoint(name, m.codec())
        endpoint.connect({m.DRIVER: driver.address})
        driver.connect({name: endpoint.address})
        if name == "c0.s1":  # the stage, in whose place it is: it has nothing to do here
            heard.extend(driver.poll(0.0))
            driver.send(name, Lane.PIPELINE, m.Stop())
        else:
            driver.send(name, Lane.PIPELINE, shm.FollowFrom(epoch=1, round=3, peers=()))
            driver.send(name, Lane.PIPELINE, shm.TakePlace(epoch=2, round=3))
        return endpoint

    monkeypatch.setattr(process, "ZmqEndpoint", bound)
    monkeypatch.setattr(process, "ThreadExecutor", lambda wake, prepare: InlineExecutor())
    successor = setups_of(tiny_job(), parts=(2, 1))[0]["c0.s1"]
    setup = replace(successor, place=replace(successor.place, cluster="~c0"), successor=successor)
    stage = StageProcess(setup, "127.0.0.1")
    assert not stage.trains
    stage.run({m.DRIVER: driver.address})
    assert stage.trains, "from then on it is a stage like any other"
    said = [(each.sender, type(each.message)) for each in (*heard, *driver.poll(0.0))]
    assert ("~c0.s1", shm.PlaceTaken) in said
    assert network.find("~c0.s1") is None
    assert network.find("c0.s1") is None


def test_a_stage_that_has_trained_has_imported_neither_torchs_compiler_nor_symbolic_shapes():
    """They would cost every stage's process 70 MiB and 33 MiB, and its start seconds."""
    code = (
        "import sys, torch\n"
        "import ravnest.stage.process\n"
        "from ravnest.stage.backward import Root\n"
        "from ravnest.training.optimizer import OptimizerConfig\n"
        "from ravnest.training.weights import VersionedWeights\n"
        "layer = torch.nn.Linear(2, 2)\n"
        "layer.set_parameter = lambda name, parameter: setattr(layer, name, parameter)\n"
        "weights = VersionedWeights(layer, OptimizerConfig(name='adamw', lr=0.1))\n"
        "Root([layer(torch.ones(1, 2))]).feed([torch.ones(1, 2)]).backward()\n"
        "weights.collect(weights.current())\n"
        "weights.step(0.1)\n"
        "weights.load_optimizer_state(weights.optimizer_state())\n"
        "print([name for name in ('torch._dynamo', 'sympy', 'networkx', 'matplotlib') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
