"""Results as a run gives them, for tests of what shows and compares them."""

from pathlib import Path

from ravnest.driver.observe.report import RunResult


def finished_run(folder: Path) -> RunResult:
    """What a run that went to its end came to."""
    return RunResult(
        out_dir=folder,
        weights_path=folder / "weights.safetensors",
        metrics_path=folder / "metrics.jsonl",
        checkpoint_path=folder / "checkpoint",
        loss_curve_path=None,
        held_out_loss=2.0123,
        metrics={"accuracy": 0.5},
        baselines={"bigram model": 2.3180},
        samples=20000,
        updates=620,
        rounds=39,
        seconds=125.0,
        samples_per_s=160.0,
        max_staleness=1,
        mean_staleness=0.43,
        sample_text="The [bold] statement",
        stopped_early=False,
    )
