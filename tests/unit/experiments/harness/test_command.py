"""An experiment's command: what it says of verdicts, and what it ends with."""

from pathlib import Path
from typing import Any

import pytest

from experiments.harness.command import parser_for, run_parts
from experiments.harness.report import Claim, Part


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets a handler and the numbers of threads for its process."""
    for what in ("signal.signal", "torch.set_num_threads", "threadpool_limits"):
        monkeypatch.setattr(f"experiments.harness.command.{what}", lambda *_, **__: None)


def told(folder: Path, capsys: Any, *options: str, fails: bool = False) -> tuple[int, str]:
    def part() -> Part:
        if fails:
            raise RuntimeError("no browser")
        return Part("speed", "The speed", [Claim("c", "it is fast", "1 s", "3 s", held=False)])

    asked = parser_for("page", None, ["speed"]).parse_args(["--out", str(folder), *options])
    code = run_parts("page", asked, {"speed": part}, title="A title", intro="")
    return code, capsys.readouterr().err


def test_a_quick_run_says_that_its_verdicts_are_no_findings(tmp_path: Path, capsys: Any) -> None:
    code, said = told(tmp_path / "quick", capsys, "--quick")
    assert code == 0
    verdict, warning = said.index("c: it is fast: 3 s (target 1 s)"), said.index("this was --quick")
    assert verdict < warning
    assert "a claim that is not held here says that the program ran, and nothing of the claim" in said
    assert "--quick" in (tmp_path / "quick/RESULT.md").read_text()
    code, said = told(tmp_path / "whole", capsys)
    assert "not held" in said
    assert "this was --quick" not in said


def test_a_part_that_fails_is_named_and_is_the_exit_code(tmp_path: Path, capsys: Any) -> None:
    code, said = told(tmp_path, capsys, fails=True)
    assert code == 1
    assert "failed: speed; their last results were kept" in said
