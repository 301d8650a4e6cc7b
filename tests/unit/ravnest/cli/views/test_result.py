from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from ravnest.cli.views.result import show_evaluation, show_result
from ravnest.driver.observe.report import RunResult
from ravnest.results.evaluation import Evaluation


def shown(result: RunResult) -> str:
    out = StringIO()
    show_result(result, Path("plan.yaml"), Console(file=out, width=80, soft_wrap=True))
    return out.getvalue()


def test_it_ends_with_figures_baselines_sample_and_paths(result: RunResult) -> None:
    text = shown(result)
    assert "20,000 in 2 min 05 s (160/s)" in text
    assert "held-out loss 2.01 · bigram model 2.32 (0.31 better)" in text
    assert "The [bold] statement" in text  # as the model wrote it, no markup
    for path in (result.weights_path, result.checkpoint_path, result.metrics_path):
        assert str(path) in text  # whole, however long
    assert "loss curve" not in text
    assert "Stopped early" not in text


def test_one_cluster_averages_with_nobody(result: RunResult) -> None:
    assert "rounds of averaging" in shown(replace(result, windows={"c0": 4, "c1": 4}))
    assert "averaging" not in shown(replace(result, windows={"c0": 4}))


def test_a_run_stopped_early_says_how_to_go_on(result: RunResult) -> None:
    text = shown(replace(result, stopped_early=True, held_out_loss=None, sample_text=None))
    assert f"ravnest run plan.yaml --resume --out {result.out_dir}" in text
    assert "held-out loss" not in text


def test_a_resumed_run_tells_what_its_time_was_for(result: RunResult) -> None:
    text = shown(replace(result, session_samples=1632, seconds=14.0, samples_per_s=116.6))
    assert "20,000; 1,632 since it was resumed in 14.0 s (117/s)" in text


def test_an_encrypted_run_says_so_beside_its_speed_and_goes_on_encrypted(result: RunResult) -> None:
    text = shown(replace(result, encrypted=True, stopped_early=True))
    assert "20,000 in 2 min 05 s (160/s, encrypted)" in text
    assert f"--resume --out {result.out_dir} --encrypt" in text


def test_an_evaluation_says_of_what_and_on_what() -> None:
    held_out = Evaluation(
        run=Path("runs/first"),
        weights=Path("runs/first/weights.safetensors"),
        data="held_out",
        samples=1234,
        loss=2.0123,
        metrics={"accuracy": 0.5},
        baselines={"bigram model": 2.32},
        seconds=75.0,
    )
    out = StringIO()
    show_evaluation(held_out, Console(file=out, width=80, soft_wrap=True))
    lines = [line.split(maxsplit=1) for line in out.getvalue().splitlines()[:2]]
    assert lines == [["weights", "runs/first/weights.safetensors"], ["data", "1,234 held-out samples in 1 min 15 s"]]
    assert "held-out loss 2.01 · bigram model 2.32 (0.31 better)" in out.getvalue()
    out = StringIO()
    show_evaluation(replace(held_out, data="train", baselines={}), Console(file=out, width=80))
    assert "training accuracy  0.5" in out.getvalue()
    assert "bigram" not in out.getvalue()
