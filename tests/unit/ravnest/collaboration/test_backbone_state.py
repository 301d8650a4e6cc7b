import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from ravnest.collaboration.backbone_state import BackboneState
from ravnest.collaboration.code_bundle import SECRETS_FILE
from ravnest.collaboration.evaluations import Evaluations, at_once
from ravnest.errors import InvalidInput
from ravnest.job.config import load_job
from tests.unit.ravnest.collaboration.jobs import job_in


def state_in(
    folder: Path,
    *,
    resume: bool = False,
    optimizer: str = "{name: adamw, lr: 1.0e-2}",
    begin: Callable[[Callable[[], None]], object] = at_once,
    tell: Callable[[str], object] = lambda _: None,
    clock: Callable[[], float] = lambda: 0.0,
) -> BackboneState:
    path = job_in(folder / "job", optimizer=optimizer)
    return BackboneState(
        load_job(path), path, folder / "out", resume=resume, tell=tell, now=lambda: 0.0,
        evaluations=Evaluations(begin, lambda _: None, clock),
    )  # fmt: skip


def curve(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / "curve.jsonl").read_text().splitlines()]


def mean_of(state: BackboneState) -> dict[str, torch.Tensor]:
    return {form.name: torch.full((form.elements,), 0.1) for form in state.trainer.packing.sent}


def applied(state: BackboneState) -> None:
    state.apply({"a": 64}, mean_of(state))


def test_a_step_is_in_the_curve_evaluated_saved_and_taken_up_again(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    state.heard(0, 0.5, 64)
    state.heard(7, 99.0, 64)  # of another step
    applied(state)
    entries = curve(tmp_path)
    assert entries[0]["loss"] == 0.5
    assert set(entries[1]["held_out"]) == {"loss", "accuracy"}
    again = state_in(tmp_path, resume=True)
    assert again.trainer.step == 1
    assert again.trainer.weights_hash() == state.trainer.weights_hash()


def test_samples_are_counted_on_after_a_resume_and_where_another_machine_takes_over(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    for samples in (70, 80):
        state.apply({"a": samples}, mean_of(state))
    state_in(tmp_path, resume=True).apply({"a": 65, "b": 1}, mean_of(state))
    assert [entry["samples_in_all"] for entry in curve(tmp_path) if "loss" in entry] == [70, 150, 216]
    stands_by = state_in(tmp_path / "other")
    for step, samples in enumerate((70, 150), 1):
        stands_by.follow(mean_of(state))
        stands_by.take_ledger(json.dumps({"step": step, "samples_in_all": samples}).encode() + b"\n", b"")
    stands_by.serves()
    stands_by.apply({"a": 64}, mean_of(state))
    assert [entry["samples_in_all"] for entry in curve(tmp_path / "other") if "loss" in entry] == [214]


def test_who_follows_from_a_later_step_counts_the_samples_of_the_steps_before(tmp_path: Path) -> None:
    """Each step before the first line that it was told counted for a target batch."""
    state = state_in(tmp_path)
    for samples in (70, 80, 90):
        state.apply({"a": samples}, mean_of(state))
    stands_by = state_in(tmp_path / "other")
    for _ in range(2):  # it loses the line and follows again
        stands_by.take_ledger(state.last_line, b"")
        vectors = {form.name: tensor for form, tensor in state.trainer.state()}
        stands_by.take_state(vectors, state.trainer.step)
    stands_by.serves()
    stands_by.apply({"a": 64}, mean_of(state))
    assert [entry["samples_in_all"] for entry in curve(tmp_path / "other") if "loss" in entry] == [240, 304]
    again = state_in(tmp_path / "other", resume=True)
    assert [json.loads(each.last_line)["samples_in_all"] for each in (state, stands_by, again)] == [240, 304, 304]


def test_a_machine_that_was_told_a_line_of_the_curve_and_no_state_yet_holds_none(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    applied(state)
    out = tmp_path / "other" / "out"
    out.mkdir(parents=True)
    (out / SECRETS_FILE).write_bytes((tmp_path / "out" / SECRETS_FILE).read_bytes())
    for _ in range(2):  # it is started anew meanwhile
        stands_by = state_in(tmp_path / "other", resume=True)
        stands_by.take_ledger(state.last_line, b"")
        assert not stands_by.holds_state
    stands_by.take_state({form.name: tensor for form, tensor in state.trainer.state()}, 1)
    assert [entry["samples_in_all"] for entry in curve(tmp_path / "other")] == [64]


def test_a_first_start_that_came_to_nothing_can_be_resumed_and_holds_a_state(tmp_path: Path) -> None:
    first = state_in(tmp_path)
    again = state_in(tmp_path, resume=True)
    assert again.holds_state
    assert again.trainer.step == 0
    assert again.trainer.weights_hash() == first.trainer.weights_hash()


def test_a_held_out_loss_that_is_no_number_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_in(tmp_path)
    monkeypatch.setattr(state.trainer, "evaluation", lambda: lambda stop: {"loss": math.nan, "accuracy": 0.5})
    applied(state)
    assert curve(tmp_path)[-1] == {"step": 1, "held_out": {"loss": None, "accuracy": 0.5}}


def test_what_is_evaluated_beside_the_steps_that_follow_is_the_model_of_its_own_step(tmp_path: Path) -> None:
    works: list[Callable[[], None]] = []
    state, alike = state_in(tmp_path / "one", begin=works.append), state_in(tmp_path / "other")
    for _ in range(3):
        applied(state)
        applied(alike)
    assert len(works) == 1  # one at a time
    works.pop()()
    state.look_at_evaluation()
    applied(state)
    works.pop()()
    state.evaluate()
    kept = {entry["step"]: entry["held_out"] for entry in curve(tmp_path / "one") if "held_out" in entry}
    applied(alike)
    expected = {entry["step"]: entry["held_out"] for entry in curve(tmp_path / "other") if "held_out" in entry}
    assert kept == {step: expected[step] for step in (1, 4)}
    assert (tmp_path / "one" / "out" / "state-000003.safetensors").exists()  # a state is saved whatever is evaluated


def test_an_evaluation_that_is_not_wanted_any_more_is_written_nowhere(tmp_path: Path) -> None:
    works: list[Callable[[], None]] = []
    state = state_in(tmp_path, begin=works.append)
    applied(state)
    state.stop_evaluation()
    works.pop()()
    state.look_at_evaluation()
    assert not any("held_out" in entry for entry in curve(tmp_path))
    state.evaluate(lambda: True)
    assert not any("held_out" in entry for entry in curve(tmp_path))


@pytest.mark.parametrize("at_the_end", [False, True])
def test_an_evaluation_that_hangs_holds_nothing_up_and_is_the_last_one(tmp_path: Path, at_the_end: bool) -> None:
    works, told, clock = list[Callable[[], None]](), list[str](), itertools.count(0.0, 100.0)
    state = state_in(tmp_path, begin=works.append, tell=told.append, clock=lambda: next(clock))
    applied(state)
    if at_the_end:
        state.evaluate()
    else:
        for _ in range(10):
            state.look_at_evaluation()
    assert sum("the evaluation of step 1 hangs" in line for line in told) == 1
    applied(state)
    state.evaluate()
    assert len(works) == 1
    assert [entry["step"] for entry in curve(tmp_path)] == [1, 2]


def test_a_model_that_cannot_be_copied_is_evaluated_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    state = state_in(tmp_path, tell=told.append)

    def refuses(*_: object) -> NoReturn:
        raise TypeError("it holds what cannot be copied")

    monkeypatch.setattr(type(state.trainer.model), "__deepcopy__", refuses, raising=False)
    applied(state)
    assert any("the model cannot be copied (it holds what cannot be copied)" in line for line in told)
    assert set(curve(tmp_path)[-1]["held_out"]) == {"loss", "accuracy"}


def test_who_resumes_with_other_code_is_told_that_invitations_are_over(tmp_path: Path) -> None:
    told: list[str] = []
    path = job_in(tmp_path / "job")

    def resumed(*, resume: bool) -> BackboneState:
        return BackboneState(load_job(path), path, tmp_path / "out", resume=resume, tell=told.append, now=lambda: 0.0)

    first = resumed(resume=False)
    first.store.save_invitation(first.invitation(("127.0.0.1:7800",)).line())
    resumed(resume=True)
    assert told == []
    (tmp_path / "job" / "notes.txt").write_text("a change")
    resumed(resume=True)
    assert told == ["the job's folder has changed since the last start: volunteers need the new invitation"]
    (tmp_path / "out" / "invitation.txt").write_text("damaged")
    resumed(resume=True)  # which is written anew


def test_who_stands_by_hears_of_the_people_after_each_step_though_not_all_the_time(tmp_path: Path) -> None:
    path, now_s = job_in(tmp_path / "job", evaluate_every=640), 100.0
    state, other = (
        BackboneState(
            load_job(path), path, tmp_path / name, resume=False, tell=lambda _: None, now=lambda: now_s
        )
        for name in ("out", "other")
    )  # fmt: skip
    lena = state.people.came("ab", "lena")
    for samples, later_s in ((64, 0.0), (128, 1.0)):
        now_s += later_s
        lena.samples = samples
        applied(state)
        other.take_ledger(*state.ledger())
        assert [one.samples for one in other.people.ranked()] == [samples]
    applied(state)
    assert state.ledger()[1] == b""


def test_who_joins_at_one_step_shares_its_copies(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    step, vectors = state.of_joiners()
    assert step == 0
    assert state.of_joiners()[1] is vectors
    before = [vector.clone() for _, vector in vectors]
    applied(state)
    assert all(torch.equal(vector, old) for (_, vector), old in zip(vectors, before, strict=True))
    assert state.of_joiners()[0] == 1


def test_a_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    applied(state_in(tmp_path))
    with pytest.raises(InvalidInput, match="another model or optimizer"):
        state_in(tmp_path, resume=True, optimizer="{name: sgd, lr: 1.0e-2}")


def test_a_folder_that_volunteers_are_sent_is_none_for_secrets(tmp_path: Path) -> None:
    path = job_in(tmp_path / "job")
    with pytest.raises(InvalidInput, match="the job's folder"):
        BackboneState(load_job(path), path, tmp_path / "job", resume=False, tell=lambda _: None, now=lambda: 0.0)
