import sys
from pathlib import Path
from typing import Any

import pytest

from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.errors import InvalidInput
from ravnest.results.tensorboard import Scalar, scalars, to_tensorboard

SHARES = {"compute": 0.9, "averaging": 0.01, "evaluation": 0.0, "handoff": 0.02, "bubble": 0.07, "waiting": {}}


def written(path: Path) -> Path:
    with MetricsWriter(path / "metrics.jsonl") as writer:
        writer.write("progress", 0.5, samples=96, clusters=[])
        both = {"cluster": "a", "update": 4, "lr": 0.5, "staleness": [0, 1]}
        writer.write("update", 1.0, stage=0, **both)
        writer.write("update", 1.5, stage=1, loss=2.5, samples=60, **both)
        writer.write("update", 1.75, stage=1, loss=float("nan"), samples=72, **{**both, "update": 5, "staleness": []})
        writer.write("progress", 2.0, samples=120, clusters=[{"name": "a", "samples_per_s": 30.0, "loss": None}])
        writer.write("time", 2.0, stages={"a.s0": SHARES})
        writer.write("memory", 2.0, cluster="a", stage=0, tensor_bytes={"weights": 5, "gradients": 2})
        writer.write("evaluated", 3.0, samples=130, loss=1.5, metrics={"accuracy": 0.25}, final=True)
        writer.write("notice", 3.0, text="no number")
    return path


def test_what_becomes_a_curve_over_the_samples_of_the_fleet(tmp_path: Path) -> None:
    from ravnest.driver.observe.metrics_file import read_metrics

    points = list(scalars(read_metrics(written(tmp_path) / "metrics.jsonl")))
    assert (
        points
        == [
            Scalar("staleness/a.s0", 0.5, 96, 1.0),
            Scalar("loss/a", 2.5, 108, 1.5),
            Scalar("lr/a", 0.5, 108, 1.5),
            Scalar("staleness/a.s1", 0.5, 108, 1.5),
            Scalar("lr/a", 0.5, 120, 1.75),  # the loss was no number
            Scalar("samples_per_s/a", 30.0, 120, 2.0),
            *(Scalar(f"time_{name}/a.s0", SHARES[name], 120, 2.0) for name in list(SHARES)[:5]),
            Scalar("tensor_bytes/a.s0", 7.0, 120, 2.0),
            Scalar("held_out/loss", 1.5, 130, 3.0),
            Scalar("held_out/accuracy", 0.25, 130, 3.0),
        ]
    )


def update_of(cluster: str, update: int) -> dict[str, Any]:
    made = {"cluster": cluster, "stage": 0, "update": update, "lr": 0.5, "staleness": []}
    return {"kind": "update", "at_s": 1.0, "loss": 2.0, "samples": 12 * (update + 1), **made}


def test_a_cluster_that_joined_late_stands_beside_the_others() -> None:
    """Its own updates begin where its schedule does: at the 100th, of 12 samples each."""
    progress = {"kind": "progress", "at_s": 2.0, "samples": 2400, "clusters": []}
    records = [update_of("a", 0), update_of("b", 0), progress, update_of("joined0", 100), update_of("a", 101)]
    losses = [(each.curve, each.step) for each in scalars(records) if each.curve.startswith("loss/")]
    assert losses == [("loss/a", 12), ("loss/b", 24), ("loss/joined0", 2412), ("loss/a", 2424)]


def test_a_session_that_was_resumed_draws_nothing_before_it_says_how_far_it_is() -> None:
    records = [update_of("a", 100), {"kind": "progress", "at_s": 2.0, "samples": 2400, "clusters": []}]
    losses = [each.step for each in scalars([*records, update_of("a", 101)]) if each.curve == "loss/a"]
    assert losses == [2412]


def test_tensorboard_reads_what_was_written_and_an_export_replaces_the_last(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        count = to_tensorboard(written(tmp_path / "run"), tmp_path / "board")
        (tmp_path / "run/metrics.jsonl").unlink()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    (point,) = events.Scalars("held_out/loss")
    assert (point.value, point.step, point.wall_time) == (1.5, 130, 3.0)
    assert sum(len(events.Scalars(tag)) for tag in events.Tags()["scalars"]) == count


def test_a_run_that_cannot_be_read_leaves_the_last_export(tmp_path: Path) -> None:
    to_tensorboard(written(tmp_path / "run"), tmp_path / "board")
    before = {file.name: file.read_bytes() for file in (tmp_path / "board").iterdir()}
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write("no record\n")
    with pytest.raises(InvalidInput, match="line 10"):
        to_tensorboard(tmp_path / "run", tmp_path / "board")
    assert {file.name: file.read_bytes() for file in (tmp_path / "board").iterdir()} == before


def test_without_tensorboard_the_user_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InvalidInput, match="pip install tensorboard") as told:
        to_tensorboard(written(tmp_path), tmp_path / "board")
    assert told.value.exit_code == 2


def test_a_folder_that_is_no_run_and_one_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no run is here"):
        to_tensorboard(tmp_path, tmp_path / "board")
    (tmp_path / "begins/logs").mkdir(parents=True)
    (tmp_path / "begins/plan.yaml").touch()
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl is missing"):
        to_tensorboard(tmp_path / "begins", tmp_path / "board")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written"):
        to_tensorboard(written(tmp_path), tmp_path / "file")
