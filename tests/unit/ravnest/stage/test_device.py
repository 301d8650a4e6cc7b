"""Where tensors are moved. There is no GPU here: what a CUDA device asks of torch is recorded, not done."""

from contextlib import nullcontext

import pytest
import torch

from ravnest.errors import RunFailed
from ravnest.stage.device import CudaDevice, HostDevice, lacking_here, stage_device
from tests.support.local import local_run, tiny_job


def test_on_the_cpu_nothing_is_moved():
    device, tensor = stage_device("cpu"), torch.ones(2)
    assert device.bring([tensor])[0] is tensor
    assert device.take([tensor])[0] is tensor
    device.settle()


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    with pytest.raises(RunFailed, match="cpu or cuda only"):
        stage_device("meta")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert lacking_here(["cuda:1", "cpu", "cuda:0", "cuda:1"]) == ["cuda:0", "cuda:1"]
    with pytest.raises(RunFailed, match="cuda:0, but torch finds no CUDA"):
        stage_device("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RunFailed, match="cuda:1, but this machine has 1 CUDA"):
        stage_device("cuda:1")


class Stream:
    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def wait_stream(self, other):
        self.calls.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.calls.append(f"host waits for {self.name}")


@pytest.fixture
def calls(monkeypatch):
    """What is asked of torch, in order; "cuda" is the CPU in disguise."""
    done = []
    computing, copying = Stream("computing", done), Stream("copying", done)
    empty, to = torch.empty, torch.Tensor.to

    def pinned_empty(shape, dtype, pin_memory):
        assert pin_memory
        return empty(shape, dtype=dtype)

    def moved(tensor, device, non_blocking):
        done.append("moved" if non_blocking else "moved at once")
        return to(tensor, "cpu", copy=True)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: copying)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: (done.append(f"on {stream.name}"), nullcontext())[1])
    monkeypatch.setattr(torch, "empty", pinned_empty)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: (done.append("pinned"), tensor)[1])
    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: done.append(f"kept for {stream.name}"))
    return done


def test_computing_waits_for_what_is_brought(calls):
    (there,) = CudaDevice(torch.device("cuda", 0)).bring([torch.ones(2)])
    assert there.tolist() == [1.0, 1.0]
    assert calls == ["on copying", "pinned", "moved", "computing waits for copying", "kept for computing"]


def test_what_is_taken_is_complete_and_was_computed_first(calls):
    (here,) = CudaDevice(torch.device("cuda", 0)).take([torch.ones(2)])
    assert here.tolist() == [1.0, 1.0]
    assert calls == ["copying waits for computing", "on copying", "kept for copying", "host waits for copying"]


def test_nothing_is_waited_for_where_nothing_is_taken(calls):
    assert CudaDevice(torch.device("cuda", 0)).take([]) == ()
    assert calls == []


def test_settling_waits_for_the_computations(calls):
    CudaDevice(torch.device("cuda", 0)).settle()
    assert calls == ["host waits for computing"]


class Elsewhere(HostDevice):
    """Keeps memory of its own, as a GPU does."""

    def __init__(self):
        self.ours = []
        self.taken = 0

    def bring(self, tensors):
        copies = tuple(tensor.detach().clone() for tensor in tensors)
        self.ours += [copy.untyped_storage().data_ptr() for copy in copies]
        return copies

    def take(self, tensors):
        self.taken += len(tensors)
        return tuple(tensor.detach().clone() for tensor in tensors)


@pytest.mark.parametrize("changes", [{}, {"split_backward": "always"}, {"activation_checkpointing": "always"}])
def test_a_stage_computes_only_with_what_was_brought(monkeypatch, changes):
    expected = local_run(tiny_job(max_staleness=0, **changes), parts=(3,))
    expected.run()
    made = []
    monkeypatch.setattr("ravnest.stage.compute.stage_device", lambda name: made.append(Elsewhere()) or made[-1])
    run = local_run(tiny_job(max_staleness=0, **changes), parts=(3,))
    for stage in run.stages.values():
        module, device = stage.compute.module, stage.compute.device
        run_span = module.forward

        def forward(*inputs, run_span=run_span, device=device):
            assert all(tensor.untyped_storage().data_ptr() in device.ours for tensor in inputs)
            return run_span(*inputs)

        module.forward = forward
    run.run()
    assert [device.taken > 0 for device in made] == [True, True, True]
    for name, stage in run.stages.items():
        before, after = expected.stages[name].compute.weights.flat(), stage.compute.weights.flat()
        assert torch.equal(before, after)
