import torch
from safetensors.torch import save_file

from ravnest.checkpoints.weight_files import StoredTensors, open_weights
from ravnest.driver import preparation
from ravnest.driver.preparation import StageState, hand_out, needed
from ravnest.job.initial_weights import make_weights
from ravnest.stage import messages as m
from ravnest.stage.process import receive_state
from ring_allreduce.transport import InProcessNetwork, Outbox, TransportLimits
from tests.support.local import JOB_FILE, setups_of, tiny_job


def test_each_stage_gets_its_span_its_optimizer_state_and_its_version():
    job = tiny_job(model={"factory": "tiny:cnn"}, data={"factory": "tiny:images"})
    setups, _ = setups_of(job, parts=(2, 1))
    weights = make_weights(job, JOB_FILE)
    states = {
        name: StageState(weights, {(f"{name}.p", "step"): torch.tensor(float(number))}, number)
        for number, name in enumerate(setups)
    }
    network = InProcessNetwork()
    driver = network.endpoint(m.DRIVER, m.codec())
    endpoints = {name: network.endpoint(name, m.codec()) for name in setups}
    network.connect_all()
    outbox = Outbox(driver)
    hand_out(outbox, driver, setups.values(), states)
    outbox.flush()
    held = {}
    for number, (name, setup) in enumerate(setups.items()):
        begin, got, optimizer = receive_state(endpoints[name])
        assert begin.version == number
        assert list(got) == needed(setup)
        assert all(torch.equal(tensor, weights[key]) for key, tensor in got.items())
        assert list(optimizer) == [(f"{name}.p", "step")]
        held[name] = set(got)
    assert held["c0.s0"] | held["c0.s1"] == held["c1.s0"] == set(weights)
    assert not held["c0.s0"] & held["c0.s1"]


def test_what_lies_in_a_file_is_read_piece_by_piece_when_there_is_room(tmp_path, monkeypatch):
    """A resumed run: weights of 9 and 4 numbers in pieces of at most 3, and optimizer state of another precision."""
    monkeypatch.setattr(preparation, "HANDED_PIECE_BYTES", 12)
    setups, _ = setups_of(tiny_job(), parts=(1,))
    (setup,) = setups.values()
    weights = make_weights(tiny_job(), JOB_FILE)
    steps = {f"{name}.step": torch.tensor(index, dtype=torch.float64) for index, name in enumerate(weights)}
    save_file(weights, tmp_path / "weights.safetensors")
    save_file(steps, tmp_path / "optimizer.safetensors")
    files, others = open_weights(tmp_path / "weights.safetensors"), open_weights(tmp_path / "optimizer.safetensors")
    state = StageState(
        StoredTensors(files, {name: name for name in weights}),
        StoredTensors(others, {(name, "step"): f"{name}.step" for name in weights}),
        3,
    )
    read = []

    def reading(stored, start, stop):
        read.append(stop - start)
        return [stored.read(start, stop)]

    monkeypatch.setattr(preparation, "_read", reading)
    network = InProcessNetwork(limits=TransportLimits(queue_messages=10_000))
    driver, stage = network.endpoint(m.DRIVER, m.codec()), network.endpoint(setup.name, m.codec())
    network.connect_all()
    outbox = Outbox(driver, most_bytes=24)
    hand_out(outbox, driver, [setup], {setup.name: state})
    assert read == []
    outbox.flush()
    assert read == [3, 3]
    while not outbox.empty:
        outbox.got(setup.name, len(read))
        outbox.flush()
    assert max(read) == 3
    begin, got, optimizer = receive_state(stage)
    assert begin.version == 3
    assert all(torch.equal(got[name], weights[name]) for name in weights)
    assert all(torch.equal(optimizer[name, "step"], steps[f"{name}.step"]) for name in weights)
    assert {tensor.dtype for tensor in optimizer.values()} == {torch.float64}
