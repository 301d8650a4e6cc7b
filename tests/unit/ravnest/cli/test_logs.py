import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster_planner import Plan, save_plan
from ravnest.cli import logs
from ravnest.cli.main import app
from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.driver.observe.report import (
    CheckpointWrittenEvent,
    NoticeEvent,
    PhaseEvent,
    TakenOverEvent,
    as_plain,
    kind_of,
)
from tests.unit.ravnest.results.test_run_state import PROGRESS, run_with


def test_what_happened_and_what_a_stage_left_are_printed(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"), PROGRESS, CheckpointWrittenEvent(Path("here"), 3))
    (run / "logs").mkdir()
    (run / "logs/c0.s1.log").write_text("Traceback\n")
    told = CliRunner().invoke(app, ["logs", str(run), "--follow"])  # it has ended: nothing to wait for
    assert told.stdout == "0.0 s · training\n2.0 s · checkpoint of round 3: here\n"
    assert CliRunner().invoke(app, ["logs", str(run), "c0.s1"]).stdout == "Traceback\n"


def test_a_line_names_each_session_whose_clock_begins_anew(tmp_path: Path) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"), PROGRESS, CheckpointWrittenEvent(Path("here"), 3))
    with MetricsWriter(run / "metrics.jsonl") as writer:
        for event in (NoticeEvent("resuming"), PhaseEvent("training")):
            writer.write(kind_of(event), 0.0, **as_plain(event))
        writer.write("phase", 0.0, **as_plain(PhaseEvent("training")))  # it ended at once, and was resumed once more
        writer.write("phase", 8.0, **as_plain(PhaseEvent("draining")))
        taken = TakenOverEvent(("c0",), (), 3, 96, 8.0)
        writer.write(kind_of(taken), 8.0, **as_plain(taken))
        writer.write("phase", 8.0, **as_plain(PhaseEvent("training")))
    said = "the run was resumed or began again, and its clock goes on from 0"
    assert CliRunner().invoke(app, ["logs", str(run)]).stdout.splitlines() == [
        "0.0 s · training",
        "2.0 s · checkpoint of round 3: here",
        f"session 2: {said}",
        "0.0 s · resuming",
        "0.0 s · training",
        f"session 3: {said}",
        "0.0 s · training",
        "8.0 s · draining",
        "8.0 s · taken over after round 3, with 96 samples and nothing started anew: c0 train on",
        "8.0 s · training",
    ]


def test_what_a_stage_prints_is_told_without_rays_words(tmp_path: Path, plan: Plan) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"))
    save_plan(plan, run / "plan.yaml")
    told = CliRunner().invoke(app, ["logs", str(run), "c0.s0", "-f"])  # it has ended: nothing to wait for
    assert (told.exit_code, told.stdout, told.stderr) == (0, "", "c0.s0 has printed nothing\n")
    (run / "logs").mkdir()
    (run / "logs/ray.log").write_text("(c0.s0 pid=4) hello\n")
    assert CliRunner().invoke(app, ["logs", str(run), "c0.s0"]).stdout == "hello\n"


def test_ctrl_c_ends_the_lines_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"))
    (run / ".lock").write_text(json.dumps({"pid": 1, "host": "another-machine", "since": "now"}))
    monkeypatch.setattr("ravnest.cli.logs.time.sleep", interrupted)
    told = CliRunner().invoke(app, ["logs", str(run), "--follow"])
    assert (told.exit_code, told.stdout, told.stderr) == (0, "0.0 s · training\n", "the run goes on\n")


def interrupted(seconds: float) -> None:
    raise KeyboardInterrupt


def test_a_run_that_may_go_on_on_another_machine_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path / "r", PhaseEvent("training"))
    (run / ".lock").write_text(json.dumps({"pid": 1, "host": "another-machine", "since": "now"}))

    def its_end(seconds: float) -> None:
        with MetricsWriter(run / "metrics.jsonl") as writer:
            writer.write("phase", 5.0, **as_plain(PhaseEvent("saving")))
        (run / ".lock").unlink()

    monkeypatch.setattr(logs.time, "sleep", its_end)
    told = CliRunner().invoke(app, ["logs", str(run), "-f"])
    assert told.stdout == "0.0 s · training\n5.0 s · saving\n"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["logs", str(tmp_path)])
    assert "no run is here" in str(told.exception)
