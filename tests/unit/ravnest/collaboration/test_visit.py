"""A visit over real lines is tested in tests/integration/test_collaboration.py; here its deadlines and refusals."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from ravnest.collaboration.messages import (
    PROTOCOL,
    AliveMessage,
    ChallengeMessage,
    EndMessage,
    GotMessage,
    JoinMessage,
    OpenMessage,
    PieceMessage,
    ProgressMessage,
    RefusedMessage,
    TakeMessage,
    TookMessage,
    TransferMessage,
    WelcomeMessage,
)
from ravnest.collaboration.progress import REPORT_S
from ravnest.collaboration.sign_in import LOOK_S, SILENT_S, Member, Refused, TrainingOver
from ravnest.collaboration.trainer import MicroBatch, NotFinite, Trainer
from ravnest.collaboration.transfers import Said, pieces
from ravnest.collaboration.visit import MOST_HELD, MOST_NOT_FINITE, Diverged, Visit
from ravnest.errors import RunFailed
from ravnest.job.config import load_job
from ring_allreduce.transport import KeyPair, Keys, LineClosed, LineEvent, LineSaid, Message
from tests.unit.ravnest.collaboration.jobs import job_in
from tests.unit.ravnest.collaboration.lines_twin import LinesTwin


def visit_of(folder: Path, *, delayed_step: bool = False) -> tuple[Visit, LinesTwin, Member, Trainer]:
    """A visit to which a backbone has said all that it says until the state is there."""
    path = job_in(folder, delayed_step=delayed_step)
    trainer, lines = Trainer(load_job(path), path), LinesTwin()
    member = Member("ada", b"k" * 32, lambda nonce: b"s" * 64, lambda files, job, session: trainer, lambda _: None)

    def says(message: Message, *tensors: torch.Tensor) -> None:
        lines.events.append(LineSaid(3, message, tensors))

    says(ChallengeMessage(protocol=PROTOCOL, nonce=b"n" * 32))
    says(WelcomeMessage(files=0, job="job.yaml", session=1, signatures=[b"s" * 96]))
    for message, tensors in pieces("state", 0, 0, trainer.state()):
        says(message, *tensors)
    return Visit(member, lines, 3, lines.now), lines, member, trainer  # type: ignore[arg-type]


def takes_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Visit, LinesTwin, Trainer]:
    """A visit that was told to take the state of step 1, or a later one, on line 7."""
    visit, lines, member, trainer = visit_of(folder)
    while len(lines.events) > 2:
        lines.events.pop()
    pair = KeyPair.make()
    member.keys = Keys(pair, {"backbone": pair.public})
    lines.dial = lambda *_: 7  # type: ignore[attr-defined]
    lines.events.append(LineSaid(3, TakeMessage(address="b:2", ticket=b"t", step=1), ()))
    return visit, lines, trainer


def test_a_state_from_elsewhere_and_the_averages_held_meanwhile_are_the_bytes_that_all_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, lines, trainer = takes_elsewhere(tmp_path, monkeypatch)
    path = tmp_path / "job.yaml"
    other = Trainer(load_job(path), path)
    averages, states = [], []
    for step in range(5):
        states.append(list(pieces("state", step, 0, other.state())))
        mean = [(form, torch.randn(form.elements)) for form in other.packing.sent]
        averages.append(list(pieces("average", step, 64, mean)))
        other.apply({form.name: vector for form, vector in mean})

    def come(line: int, said: Sequence[Said]) -> None:
        lines.events += [LineSaid(line, message, tensors) for message, tensors in said]

    come(3, averages[1])
    come(7, states[2][:9])  # the state has average 1
    come(3, averages[2] + averages[3][:3])
    come(7, states[2][9:])
    come(3, averages[3][3:] + averages[4])
    lines.events.append(LineSaid(3, EndMessage(step=5), ()))
    assert visit.run(every(1000))
    assert trainer.step == 5
    assert trainer.weights_hash() == other.weights_hash()
    for (form, one), (_, same) in zip(trainer.state(), other.state(), strict=True):
        assert torch.equal(one, same), form.name
    assert lines.said(TookMessage) == [TookMessage(step=2)]
    taken = sum(isinstance(message, PieceMessage) for average in averages[1:] for message, _ in average)
    assert lines.said(GotMessage, 3)[-1] == GotMessage(pieces=taken), "each piece once"
    assert 7 in lines.hung_up


def test_a_state_that_does_not_come_from_elsewhere_comes_from_the_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, lines, trainer = takes_elsewhere(tmp_path, monkeypatch)
    lines.events.append(LineClosed(7, "it has left"))
    vectors = [(form, torch.zeros(form.elements)) for form in trainer.packing.sent]
    path = tmp_path / "job.yaml"
    other = Trainer(load_job(path), path)
    for step in range(12):  # more than are looked at ahead
        for message, tensors in pieces("average", step, 64, vectors):
            lines.events.append(LineSaid(3, message, tensors))
        other.apply({form.name: vector for form, vector in vectors})
    for message, tensors in pieces("state", 12, 0, other.state()):
        lines.events.append(LineSaid(3, message, tensors))
    lines.events.append(LineSaid(3, EndMessage(step=12), ()))
    assert visit.run(every(1000))
    assert trainer.weights_hash() == other.weights_hash()
    assert lines.said(TookMessage, 3) == [TookMessage(step=None)]


def test_who_has_the_state_is_not_told_to_take_another_one(tmp_path: Path) -> None:
    visit, lines, _, _ = visit_of(tmp_path)
    lines.events.append(LineSaid(3, TakeMessage(address="b:2", ticket=b"t", step=0), ()))
    with pytest.raises(RunFailed, match="out of turn"):
        visit.run(every(1000))


def every(turns: int) -> Callable[[], bool]:
    """Stops after so many turns, so that no defect hangs the test."""
    left = iter(range(turns))
    return lambda: next(left, None) is None


def test_who_leaves_says_so(tmp_path: Path) -> None:
    visit, lines, member, _ = visit_of(tmp_path)
    assert visit.run(every(20))
    assert lines.said(EndMessage, 3) == [EndMessage(step=0)]
    assert not member.given.weights


def test_a_backbone_that_says_nothing_while_it_is_waited_for_is_left(tmp_path: Path) -> None:
    visit, lines, member, _ = visit_of(tmp_path)
    lines.events.append(LineSaid(3, OpenMessage(step=0, stop=0), ()))
    lines.events.append(LineSaid(3, AliveMessage(step=0), ()))
    with pytest.raises(RunFailed, match="said nothing"):
        visit.run(every(100_000))
    assert lines.now_s > SILENT_S
    assert member.given.visits == 1
    assert member.signatures == (b"s" * 96,)
    assert lines.said(JoinMessage)


def test_a_silent_backbone_is_left_sooner_where_another_machine_has_taken_over(tmp_path: Path) -> None:
    visit, lines, member, _ = visit_of(tmp_path)
    terms, answers = list[int](), iter([False, False, True])

    def is_served_after(term: int) -> bool:
        terms.append(term)
        return next(answers)

    member.is_served_after = is_served_after
    lines.events.append(LineSaid(3, OpenMessage(step=0, stop=0), ()))
    with pytest.raises(RunFailed, match="another machine serves"):
        visit.run(every(100_000))
    assert terms == [0, 0, 0]
    assert 3 * LOOK_S < lines.now_s < 4 * LOOK_S


def test_a_micro_batch_that_is_not_finite_counts_as_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visit, lines, _, trainer = visit_of(tmp_path)
    compute, numbers = trainer.compute, []

    def sometimes(number: int) -> MicroBatch:
        numbers.append(number)
        if len(numbers) == 12:
            lines.events.append(LineSaid(3, EndMessage(step=0), ()))
        if number % 2:
            raise NotFinite("the loss of a micro-batch is nan")
        return compute(number)

    monkeypatch.setattr(trainer, "compute", sometimes)
    assert visit.run(every(1000))
    assert numbers == list(range(12))
    told = lines.said(ProgressMessage)
    assert max(message.samples for message in told if isinstance(message, ProgressMessage)) <= 6 * 8
    assert not lines.said(TransferMessage)


def test_the_second_micro_batch_s_time_replaces_the_first_one_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, lines, _, trainer = visit_of(tmp_path)
    compute, count = trainer.compute, 0

    def warming_up(number: int) -> MicroBatch:
        nonlocal count
        count += 1
        lines.now_s += 100.0 if count == 1 else 4.0
        if count == 2:
            lines.events.append(LineSaid(3, EndMessage(step=0), ()))
        return compute(number)

    monkeypatch.setattr(trainer, "compute", warming_up)
    assert visit.run(every(1000))
    rates = [message.samples_per_s for message in lines.said(ProgressMessage) if isinstance(message, ProgressMessage)]
    first, second = [rate for rate in rates if rate]
    assert first == pytest.approx(0.08, rel=1e-3)
    assert second == pytest.approx(2.0, rel=1e-3), "waiting for the answer to its first rate is no computing"


@pytest.mark.parametrize("delayed", [False, True])
def test_who_waits_with_a_whole_batch_does_not_look_slow_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delayed: bool
) -> None:
    """Who looks slow is asked for nothing or one micro-batch a step, and would look so for many steps."""
    visit, lines, _, trainer = visit_of(tmp_path, delayed_step=delayed)
    compute, turns, full = trainer.compute, 0, trainer.target_batch // trainer.job.micro_batch
    mean = [(form, torch.zeros(form.elements)) for form in trainer.packing.sent]

    def takes_4_s(number: int) -> MicroBatch:
        lines.now_s += 4.0
        if number == full + 1:
            lines.events.append(LineSaid(3, EndMessage(step=1), ()))
        return compute(number)

    def waits_long() -> bool:
        nonlocal turns
        turns += 1
        if turns == 300:
            lines.events.append(LineSaid(3, OpenMessage(step=0, stop=trainer.target_batch), ()))
            for message, tensors in pieces("average", 0, trainer.target_batch, mean):
                lines.events.append(LineSaid(3, message, tensors))
        return turns == 1000

    monkeypatch.setattr(trainer, "compute", takes_4_s)
    assert visit.run(waits_long)
    assert lines.now_s > 4.0 * full + 100.0
    told = [message for message in lines.said(ProgressMessage) if isinstance(message, ProgressMessage)]
    assert max(message.step for message in told) == 1
    assert told[-1].samples_per_s == pytest.approx(trainer.job.micro_batch / 4.0, rel=0.05)


def test_nothing_is_computed_for_a_step_whose_average_is_coming_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, lines, member, trainer = visit_of(tmp_path)
    vectors = [(form, torch.zeros(form.elements)) for form in trainer.packing.sent]
    average = list(pieces("average", 0, 64, vectors))
    lines.events += [LineSaid(3, message, tensors) for message, tensors in average]
    compute, left = trainer.compute, list[int]()

    def noted(number: int) -> MicroBatch:
        left.append(len(lines.events))
        if len(left) == 4:
            lines.events.append(LineSaid(3, EndMessage(step=1), ()))
        return compute(number)

    monkeypatch.setattr(trainer, "compute", noted)
    assert visit.run(every(1000))
    assert len(lines.said(EndMessage)) == 1, "the backbone waits for its word"
    assert member.given.steps == 1
    assert len(left) >= 4
    assert not set(left) & set(range(1, len(average)))  # one of these is waited for as long as the average is not whole


def test_a_training_that_has_diverged_ends_the_volunteer_instead_of_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, _, _, trainer = visit_of(tmp_path)
    numbers = []

    def never(number: int) -> MicroBatch:
        numbers.append(number)
        raise NotFinite("the loss of a micro-batch is nan")

    monkeypatch.setattr(trainer, "compute", never)
    with pytest.raises(Diverged, match="nan"):
        visit.run(every(1000))
    assert len(numbers) == MOST_NOT_FINITE


def test_who_has_a_whole_batch_says_so_again_and_again(tmp_path: Path) -> None:
    """The backbone does not count on it before it reaches all helpers, and forgets what it said before."""
    visit, lines, _, trainer = visit_of(tmp_path)
    assert visit.run(every(100))
    told = [one.samples for one in lines.said(ProgressMessage) if isinstance(one, ProgressMessage)]
    full = told.count(trainer.target_batch)
    assert 10 <= full <= lines.now_s / REPORT_S + 1


def test_who_takes_long_to_agree_is_not_told_that_the_backbone_was_silent(tmp_path: Path) -> None:
    visit, lines, member, trainer = visit_of(tmp_path)
    while len(lines.events) > 2:  # the state comes later
        lines.events.pop()

    def agreed_at_last(files: dict[str, bytes], job: str, session: int) -> Trainer:
        lines.now_s += 3 * SILENT_S
        return trainer

    member.trainer = agreed_at_last
    assert visit.run(every(5))


@pytest.mark.parametrize("may_return", [True, False])
def test_who_is_put_out_without_a_fault_of_its_own_may_return(tmp_path: Path, may_return: bool) -> None:
    visit, lines, _, _ = visit_of(tmp_path)
    lines.events.append(LineSaid(3, RefusedMessage(reason="too slow", may_return=may_return), ()))
    with pytest.raises(RunFailed, match="too slow") as raised:
        visit.run(every(100))
    assert isinstance(raised.value, Refused) is not may_return


def test_where_steps_are_delayed_an_average_is_taken_while_a_micro_batch_is_computed_and_applied_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, lines, member, trainer = visit_of(tmp_path, delayed_step=True)
    compute, send, taken, held = trainer.compute, lines.send, threading.Event(), [-1]
    mean = [(form, torch.ones(form.elements)) for form in trainer.packing.sent]

    def watched(line: int, message: Message, tensors: tuple[torch.Tensor, ...] = ()) -> None:
        send(line, message, tensors)
        if isinstance(message, GotMessage) and held[0] == 0:
            taken.set()

    def during(number: int) -> MicroBatch:
        made = compute(number)
        if number == 1:  # it has given one to step 0, and this one is of step 1
            held[0] = trainer.step
            for message, tensors in pieces("average", 0, 8, mean):
                lines.events.append(LineSaid(3, message, tensors))
            lines.events.append(LineSaid(3, OpenMessage(step=1, stop=16), ()))
            assert taken.wait(30.0), "the average is not taken before the micro-batch is made"
            assert trainer.step == 0, "another thread has the model"
        if number == 2:
            assert trainer.step == 0, "the second batch is by weights without the average of the first"
        if number == 3:
            assert trainer.step == 1
            lines.events.append(LineSaid(3, EndMessage(step=1), ()))
        return made

    monkeypatch.setattr(lines, "send", watched)
    monkeypatch.setattr(trainer, "compute", during)
    lines.events.append(LineSaid(3, OpenMessage(step=0, stop=8), ()))
    assert visit.run(every(1000))
    assert held == [0]
    assert (trainer.step, member.given.steps, member.given.samples) == (1, 1, 24)


def test_who_computes_long_holds_few_averages_meanwhile_and_takes_the_others_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, lines, _, trainer = visit_of(tmp_path, delayed_step=True)
    compute, take, read, steps = trainer.compute, lines.take, threading.Event(), 5
    gotten: list[int] = []

    def watched(timeout_s: float) -> list[LineEvent]:
        found = take(timeout_s)
        if not found and not lines.events:
            read.set()
        return found

    def during(number: int) -> MicroBatch:
        made = compute(number)
        if number == 1:  # the others make five steps in the time of this micro-batch
            read.clear()
            for step in range(steps):
                mean = [(form, torch.full((form.elements,), 0.1 * step)) for form in trainer.packing.sent]
                for message, tensors in pieces("average", step, 8, mean):
                    lines.events.append(LineSaid(3, message, tensors))
            assert read.wait(30.0)
            gotten.extend(message.pieces for message in lines.said(GotMessage) if isinstance(message, GotMessage))
            lines.events.append(LineSaid(3, EndMessage(step=steps), ()))
        return made

    monkeypatch.setattr(lines, "take", watched)
    monkeypatch.setattr(trainer, "compute", during)
    lines.events.append(LineSaid(3, OpenMessage(step=0, stop=8), ()))
    assert visit.run(every(1000))
    after = lines.said(GotMessage)[-1]
    assert isinstance(after, GotMessage)
    assert gotten[-1] == after.pieces - (steps - MOST_HELD), "each of these averages is one piece"
    assert trainer.step == steps


def test_an_end_before_the_last_average_is_none(tmp_path: Path) -> None:
    visit, lines, member, _ = visit_of(tmp_path)
    lines.events.append(LineSaid(3, EndMessage(step=1), ()))
    with pytest.raises(RunFailed, match="ended at step 1"):
        visit.run(every(1000))
    assert not member.given.weights


@pytest.mark.parametrize("delayed", [False, True])
def test_nothing_is_computed_for_a_step_that_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delayed: bool
) -> None:
    """Who is behind would take nothing meanwhile, and stay behind."""
    visit, lines, _, trainer = visit_of(tmp_path, delayed_step=delayed)
    compute, steps, waited = trainer.compute, list[int](), 0
    mean = [(form, torch.zeros(form.elements)) for form in trainer.packing.sent]
    lines.events.insert(2, LineSaid(3, AliveMessage(step=2), ()))

    def seen(number: int) -> MicroBatch:
        steps.append(trainer.step)
        lines.events.append(LineSaid(3, EndMessage(step=2), ()))
        return compute(number)

    def averages_come_late() -> bool:
        nonlocal waited
        waited += 1
        if waited in (20, 40):
            for message, tensors in pieces("average", waited // 20 - 1, 64, mean):
                lines.events.append(LineSaid(3, message, tensors))
        return waited > 1000

    monkeypatch.setattr(trainer, "compute", seen)
    assert visit.run(averages_come_late)
    assert steps == [2 - delayed], "by the weights of the last step that was made, or of the one before"


def test_who_is_ready_once_training_has_ended_is_told_so_and_looks_for_nobody(tmp_path: Path) -> None:
    visit, lines, member, _ = visit_of(tmp_path)
    while len(lines.events) > 2:
        lines.events.pop()  # the state
    lines.events += [LineSaid(3, EndMessage(step=4), ()), LineClosed(3, "training has ended")]
    with pytest.raises(TrainingOver, match="before this volunteer had the state"):
        visit.run(every(1000))
    assert not member.given.weights
