"""Stages that compute on a GPU: `make test-gpu`. Without one they are skipped, and `make test-gpu` says so.

Expected is what the same stages compute on the processor. Kernels round differently, so numbers agree to within a
tolerance only.
"""

import pytest
import torch

from ravnest.driver.in_process import LocalRun
from ravnest.profiling.benchmark_work import work_of
from ravnest.profiling.gpu_process import process_bytes
from ravnest.profiling.speed import StayingThere, measure_speed
from ravnest.stage.device import CudaDevice, stage_device
from tests.support.local import JOB_FILE, local_run, tiny_job

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")

GPU = "cuda:0"
CNN = {
    "model": {"factory": "tiny:cnn"},
    "data": {"factory": "tiny:images"},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
}
CASES = {
    "asynchronous": {},
    "synchronous": {"max_staleness": 0},
    "batch-norm": {**CNN, "max_staleness": 0},
    "split backwards": {"max_staleness": 0, "split_backward": "always"},
    "recomputed": {"max_staleness": 0, "activation_checkpointing": "always"},
}


def test_what_is_brought_and_taken_is_the_same():
    device = stage_device(GPU)
    assert isinstance(device, CudaDevice)
    sent = [torch.arange(10.0), torch.ones(3, 4, dtype=torch.bfloat16), torch.tensor(7), torch.empty(0)]
    there = device.bring(sent)
    assert {tensor.device.type for tensor in there} == {"cuda"}
    back = device.take(there)
    assert all(torch.equal(a, b) for a, b in zip(sent, back, strict=True))
    assert all(tensor.is_pinned() for tensor in back if tensor.numel())


def test_what_is_taken_was_computed_first():
    """The product is still being computed when it is asked for, on another stream than that of the copies."""
    device = stage_device(GPU)
    (matrix,) = device.bring([torch.full((4096, 4096), 1 / 64)])
    for _ in range(20):
        matrix = matrix @ matrix / 1.0
        matrix = matrix / matrix.mean() / 64
    (there,) = device.take([matrix])
    torch.testing.assert_close(there, torch.full((4096, 4096), 1 / 64), rtol=1e-2, atol=1e-4)


def test_memory_of_what_was_brought_is_not_used_again_too_early():
    """Tensors are dropped while the computation with them is still queued, and others are brought in their place."""
    device = stage_device(GPU)
    sums = []
    for number in range(50):
        (there,) = device.bring([torch.full((1 << 20,), float(number))])
        for _ in range(20):
            there = there + 0.0
        sums.append(there.mean())
        del there
    device.settle()
    assert [float(total) for total in sums] == [float(number) for number in range(50)]


def test_what_a_process_takes_of_the_card_is_measured():
    torch.zeros(1, device=GPU)  # the context of this process is there before
    found = process_bytes(GPU)
    assert found is not None
    assert 100 << 20 < found < 4 << 30


def trained(device: str, **changes) -> LocalRun:
    run = local_run(tiny_job(**changes), parts=(3,), device=device)
    run.run()
    return run


@pytest.mark.parametrize("case", CASES)
def test_a_run_on_the_gpu_learns_what_it_learns_on_the_processor(case):
    here, there = trained("cpu", **CASES[case]), trained(GPU, **CASES[case])
    for name, stage in there.stages.items():
        weights = stage.compute.weights
        assert {parameter.device.type for parameter in stage.compute.module.parameters()} == {"cuda"}
        expected = here.stages[name].compute.weights.flat()
        assert weights.flat().device.type == "cpu"
        assert float((weights.flat() - expected).norm() / expected.norm()) < 2e-2, name


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_run_on_the_gpu_learns_in_shorter_types(precision):
    run = trained(GPU, precision=precision, max_staleness=0)
    expected = trained("cpu", max_staleness=0)
    for name, stage in run.stages.items():
        whole = expected.stages[name].compute.weights.flat()
        assert float((stage.compute.weights.flat() - whole).norm() / whole.norm()) < 0.1, name


def test_two_clusters_on_one_gpu_agree_after_their_last_round():
    run = local_run(tiny_job(), parts=(2, 2), device=GPU)
    run.run()
    for index in range(2):
        first, second = (run.stages[f"c{cluster}.s{index}"].compute.weights.flat() for cluster in range(2))
        assert torch.equal(first, second)


def test_speed_is_measured_where_units_pass_their_tensors_on_the_gpu():
    job = tiny_job(precision="bfloat16")
    work = work_of(job, JOB_FILE, 10**10)
    speed = measure_speed(work, device=GPU, threads=1, seconds=0.2, search_dirs=[JOB_FILE.parent])
    assert len(speed.kind_s) == len(work.kinds)
    assert all(seconds > 0 for seconds in speed.kind_s)


def test_what_a_unit_gives_stays_on_the_gpu_while_its_speed_is_measured():
    device = StayingThere(torch.device(GPU))
    (there,) = device.bring([torch.ones(3)])
    (kept,) = device.take([there])
    assert kept is there
    assert kept.device.type == "cuda"
