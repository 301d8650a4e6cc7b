from itertools import count
from types import SimpleNamespace

import pytest
import torch

from cluster_planner import SpanCosts
from ravnest.planning.workload import workload
from ravnest.profiling import speed as speed_module
from ravnest.profiling.benchmark_work import work_of
from ravnest.profiling.memory_traffic import flops_per_s
from ravnest.profiling.speed import StayingThere, as_together, measure_speed
from tests.support.local import JOB_FILE, captured_job, tiny_job


def test_the_speed_of_the_jobs_units_is_what_the_plan_divides_by() -> None:
    job = tiny_job()
    work = work_of(job, JOB_FILE, 10**12)
    captured = captured_job(job)
    planned = SpanCosts(captured.costs, workload(job)).flops(0, len(captured.units))
    assert sum(kind.count * kind.flops for kind in work.kinds) == pytest.approx(planned)
    speed = measure_speed(work, device="cpu", threads=1, seconds=0.01, search_dirs=[JOB_FILE.parent])
    assert speed.flops_per_s.value * speed.micro_batch_s == pytest.approx(planned)
    assert speed.repeats >= 4
    for traffic in (0.0, 12.5):
        weighted = SpanCosts(captured.costs.with_traffic(traffic), workload(job)).flops(0, len(captured.units))
        told_s = weighted / flops_per_s(work.kinds, speed.kind_s, traffic)
        assert told_s == pytest.approx(speed.micro_batch_s, rel=1e-6)


def test_units_that_are_alike_are_measured_once() -> None:
    deep = tiny_job(model={"factory": "tiny:gpt", "args": {"layers": 6}})
    works = [work_of(job, JOB_FILE, 10**12) for job in (tiny_job(), deep)]
    few, many = (len(captured_job(job).units) for job in (tiny_job(), deep))
    assert many > few
    assert [sum(kind.count for kind in work.kinds) for work in works] == [few, many]
    assert len(works[1].programs) == len(works[1].kinds) < many / 2
    speed = measure_speed(works[1], device="cpu", threads=1, seconds=0.01, search_dirs=[JOB_FILE.parent])
    assert len(speed.kind_s) == len(works[1].kinds)
    assert speed.micro_batch_s > sum(speed.kind_s)


def test_times_of_single_units_are_brought_to_what_they_take_together() -> None:
    kind_s = as_together([4e-3, 1e-3, 2e-3], counts=[2, 5, 0], together_s=6.5e-3)
    assert kind_s == pytest.approx([2e-3, 0.5e-3, 1e-3])


def test_on_a_gpu_units_take_what_they_take_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by 1 ms whenever it is read: a micro-batch takes as long of one unit as of the model."""
    readings = count()
    monkeypatch.setattr(speed_module, "time", SimpleNamespace(perf_counter=lambda: 1e-3 * next(readings)))
    work = work_of(tiny_job(), JOB_FILE, 10**12)
    alone = measure_speed(work, device="cpu", threads=1, seconds=0.1, search_dirs=[JOB_FILE.parent])
    monkeypatch.setattr(speed_module, "keeps_tensors", lambda device: True)
    speed = measure_speed(work, device="cpu", threads=1, seconds=0.1, search_dirs=[JOB_FILE.parent])
    assert alone.micro_batch_s == pytest.approx(sum(work.counts) * speed.micro_batch_s)
    assert speed.kind_s == pytest.approx([one / sum(work.counts) for one in alone.kind_s])


def test_what_a_unit_gives_is_a_new_leaf_for_the_next_one() -> None:
    device = StayingThere(torch.device("cpu"))
    given = torch.ones(3, requires_grad=True) * 2
    (taken,) = device.bring(device.take([given]))
    assert taken.is_leaf
    assert not taken.requires_grad
    assert taken.data_ptr() == given.data_ptr()
