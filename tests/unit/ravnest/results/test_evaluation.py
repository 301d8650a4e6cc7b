"""A run's weights evaluated afterwards: the numbers of the run's own last evaluation, one span at a time."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cluster_planner import save_plan
from ravnest.checkpoints.weight_files import open_weights
from ravnest.driver.stage_setups import evaluating_cluster
from ravnest.errors import Interrupted, InvalidInput
from ravnest.job.config import Job
from ravnest.job.materials import make_model
from ravnest.results.evaluation import Evaluation, chosen_batches, evaluate
from ravnest.results.trained_run import TrainedRun, open_run
from ravnest.splitting import StageModule, StageProgram
from ravnest.training.named_measures import Measure
from ravnest.training.sampler import EvaluationBatches
from tests.support.local import JOB_FILE, captured_job, local_run, plan_with, setups_of, tiny_job

GPT_2 = {"huggingface": {"model_type": "gpt2", "n_layer": 2, "n_embd": 12, "n_head": 2, "n_positions": 8}}
GPT_2["huggingface"] |= {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 0}


def written(folder: Path, job: Job, weights: dict[str, torch.Tensor], parts: tuple[int, ...]) -> TrainedRun:
    _, plan = setups_of(job, parts=parts)
    folder.mkdir(exist_ok=True)
    save_plan(plan, folder / "plan.yaml")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "weights.safetensors")
    return open_run(folder)


def start(job: Job) -> dict[str, torch.Tensor]:
    """Weights without a run."""
    torch.manual_seed(4)
    return make_model(job, JOB_FILE).state_dict()


def of_file(run: TrainedRun, **options: Any) -> Evaluation:
    return evaluate(run, open_weights(run.folder.weights), **options)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"metrics": ["accuracy", "perplexity"]}, (3, 1)),
        ({"model": {"factory": "tiny:cnn"}, "data": {"factory": "tiny:images"}}, (2,)),
        ({"precision": "bfloat16"}, (2,)),
        ({"model": GPT_2}, (2,)),
    ],
    ids=["two clusters", "batch-norm", "bfloat16", "tied"],
)
def test_it_gives_the_numbers_of_the_runs_own_last_evaluation(
    tmp_path: Path, changes: dict[str, Any], parts: tuple[int, ...]
) -> None:
    job = tiny_job(**changes)
    local = local_run(job, parts=parts)
    result = local.run()
    run = written(tmp_path, job, result.checkpoints[-1], parts)
    found = of_file(run)
    final = result.evaluations[-1]
    assert found.loss == Measure(*final.loss).mean
    assert found.samples == 10
    assert len(found.metrics) == len(job.metrics)
    for value, sums in zip(found.metrics.values(), final.metrics, strict=True):
        assert value in (Measure(*sums).mean, pytest.approx(2.718281828459045 ** Measure(*sums).mean))


@pytest.fixture(autouse=True)
def captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capturing takes seconds, and is the same each time."""
    monkeypatch.setattr("ravnest.results.evaluation.capture_job", lambda job, job_file, data: captured_job(job))


@pytest.fixture
def untrained(tmp_path: Path) -> TrainedRun:
    """A run of three stages whose weights are those before training."""
    return written(tmp_path, tiny_job(), start(tiny_job()), (3,))


def test_one_span_is_held_at_a_time_and_read_once_for_each_group(
    untrained: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[StageModule] = weakref.WeakSet()
    most, built = [], []

    def watched(program: StageProgram, *args: Any, **options: Any) -> StageModule:
        most.append(len(alive))
        module = StageModule(program, *args, **options)
        alive.add(module)
        built.append((program.start, program.end))
        return module

    monkeypatch.setattr("ravnest.results.evaluation.StageModule", watched)
    whole = of_file(untrained)
    stages = [stage.units for stage in untrained.plan.clusters[0].stages]
    assert built == stages
    assert most == [0, 0, 0]
    built.clear()
    monkeypatch.setattr("ravnest.results.evaluation.free_bytes", lambda: 12_000)
    job = replace(untrained, job=untrained.job.model_copy(update={"micro_batch": 1}))
    monkeypatch.setattr("ravnest.results.evaluation.evaluation_batch", lambda job, captured: 5)
    small = of_file(job)
    assert len(built) > 3 * len(stages)  # several groups, and smaller spans
    assert max(end - begin for begin, end in built) < max(end - begin for begin, end in stages)
    assert max(most) == 0
    assert small.loss == pytest.approx(whole.loss, rel=1e-6)


def test_progress_is_told_to_the_end(untrained: TrainedRun) -> None:
    steps: list[str] = []
    parts: list[float] = []
    of_file(untrained, data="train", step=steps.append, progress=parts.append)
    assert steps == ["reading the data", "capturing the model", "evaluating 240 samples in 3 spans of the model"]
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    assert len(parts) == 3 * 15


def test_the_training_set_has_no_baselines(untrained: TrainedRun) -> None:
    assert of_file(untrained).baselines == {"guessing": 2.3979}
    assert of_file(untrained, data="train").baselines == {}


def test_other_weights_in_a_narrower_precision_are_taken(untrained: TrainedRun, tmp_path: Path) -> None:
    other = {name: tensor.bfloat16() for name, tensor in start(tiny_job()).items()}
    save_file(other, tmp_path / "other.safetensors")
    found = evaluate(untrained, open_weights(tmp_path / "other.safetensors"))
    assert found.loss == pytest.approx(of_file(untrained).loss, rel=1e-2)
    assert found.loss != of_file(untrained).loss


def test_weights_of_another_model_are_refused(untrained: TrainedRun, tmp_path: Path) -> None:
    weights = start(tiny_job())
    head = weights.pop("head.bias")
    save_file(weights, tmp_path / "less.safetensors")
    with pytest.raises(InvalidInput, match=r"less\.safetensors: head\.bias: is missing$"):
        evaluate(untrained, open_weights(tmp_path / "less.safetensors"))
    save_file({**weights, "head.bias": head[1:]}, tmp_path / "other.safetensors")
    with pytest.raises(InvalidInput, match=r"head\.bias: has the shape \(10,\); the model's is \(11,\)"):
        evaluate(untrained, open_weights(tmp_path / "other.safetensors"))


def test_a_model_that_has_changed_is_refused(untrained: TrainedRun) -> None:
    job = tiny_job(model={"factory": "tiny:gpt", "args": {"layers": 2}})
    with pytest.raises(InvalidInput, match=r"model: the model that the job makes now is not the one that was trained"):
        of_file(replace(untrained, job=job))


def test_what_is_not_there_is_refused(untrained: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ravnest.results.evaluation.EvaluationBatches", lambda *arguments, **options: [])
    with pytest.raises(
        InvalidInput,
        match=r"data\.factory: `held_out` has 10 samples, which fill no batch of 16: .* nothing to evaluate",
    ):
        of_file(untrained)
    with pytest.raises(InvalidInput, match=r"--device: torch knows no device 'gpu'"):
        of_file(untrained, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match=r"--device: it is cuda:0, but torch finds no CUDA"):
            of_file(untrained, device="cuda:0")


def test_a_unit_that_memory_cannot_hold_is_refused(untrained: TrainedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ravnest.results.evaluation.free_bytes", lambda: 1_000)
    with pytest.raises(
        InvalidInput, match=r"model: one of its units has .* of weights, and 1 kB of memory are left on cpu"
    ):
        of_file(untrained)


def test_a_metric_that_raises_is_told_as_the_users(
    untrained: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_metric.py").write_text("def bad():\n    return lambda output, target: output.nope\n")
    monkeypatch.chdir(tmp_path)
    job = tiny_job(metrics=[{"factory": "bad_metric:bad"}])
    said = r"job\.yaml: metrics: 'bad_metric:bad', on an output of \(10, 8, 11\), raised AttributeError"
    with pytest.raises(InvalidInput, match=said):
        of_file(replace(untrained, job=job))


def test_the_plan_says_which_cluster_evaluated() -> None:
    job = tiny_job()
    plan = plan_with(job, captured_job(job), [[1], [2]])
    faster = replace(plan.predicted.clusters[1], samples_per_s=11.0)
    changed = replace(plan, predicted=replace(plan.predicted, clusters=(plan.predicted.clusters[0], faster)))
    assert evaluating_cluster(plan).name == "c0"
    assert evaluating_cluster(changed).name == "c1"


def test_some_samples_are_whole_batches_from_all_over_the_set() -> None:
    batches = EvaluationBatches(98, 10)
    assert chosen_batches(batches, None) == list(batches)
    assert [batch[0] for batch in chosen_batches(batches, 25)] == [0, 30, 60]
    assert chosen_batches(batches, 1) == [range(10)]
    assert chosen_batches(batches, 1000) == list(batches)
    assert chosen_batches(EvaluationBatches(3, 10, short_last=False), 5) == []


def test_a_part_of_the_set_is_told_as_such_and_compared_with_no_baseline(
    untrained: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ravnest.results.evaluation.evaluation_batch", lambda job, captured: 5)
    whole, part = of_file(untrained), of_file(untrained, samples=4)
    assert (whole.samples, whole.set_samples, whole.stopped_early) == (10, None, False)
    assert (part.samples, part.set_samples, part.stopped_early) == (5, 10, False)
    assert whole.baselines
    assert not part.baselines


def test_stopped_it_tells_what_is_through_all_spans(untrained: TrainedRun) -> None:
    """240 samples in batches of 16, in 3 spans: the last span begins with the 31st."""
    passed: list[float] = []
    batches = 15
    found = of_file(untrained, data="train", progress=passed.append, stop=lambda: len(passed) == 2 * batches + 4)
    assert (found.samples, found.set_samples, found.stopped_early) == (4 * 16, 240, True)
    first = of_file(untrained, data="train", stop=lambda: False)
    assert found.loss != first.loss
    with pytest.raises(Interrupted, match="nothing to tell"):
        of_file(untrained, data="train", stop=lambda: True)
