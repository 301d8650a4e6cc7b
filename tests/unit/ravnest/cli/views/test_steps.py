from io import StringIO

import pytest
from rich.console import Console

from ravnest.cli.views.steps import Steps


def test_a_finished_step_stays_with_its_time() -> None:
    out = StringIO()
    with Steps(Console(file=out)) as steps:
        steps.begin("capturing")
        steps.begin("planning")
    assert [line.split(":")[0] for line in out.getvalue().splitlines()] == ["capturing", "planning"]


def fail_in_a_step(out: StringIO) -> None:
    with Steps(Console(file=out)) as steps:
        steps.begin("capturing")
        raise ValueError("no")


def test_a_step_that_failed_is_not_called_done() -> None:
    out = StringIO()
    with pytest.raises(ValueError, match="no"):
        fail_in_a_step(out)
    assert out.getvalue() == ""


def test_how_far_a_step_is_stands_beside_it_on_a_terminal_alone() -> None:
    terminal, file = StringIO(), StringIO()
    for out, is_terminal in ((terminal, True), (file, False)):
        with Steps(Console(file=out, force_terminal=is_terminal)) as steps:
            steps.begin("evaluating")
            steps.say("40%")
    assert "evaluating … 40%" in terminal.getvalue()
    assert "40%" not in file.getvalue()


class Clock:
    """A clock that stands where it was put."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_long_step_says_how_far_it_is_and_what_is_left() -> None:
    terminal, file = StringIO(), StringIO()
    for out, is_terminal in ((terminal, True), (file, False)):
        clock = Clock()
        with Steps(Console(file=out, force_terminal=is_terminal, width=100), clock) as steps:
            steps.begin("evaluating")
            for now_s, part in ((1.0, 0.01), (20.0, 0.25), (40.0, 0.5), (50.0, 0.625)):
                clock.now_s = now_s
                steps.done(part)
            assert str(steps.__rich__()) == "evaluating … 62%, 30.0 s left"
            clock.now_s = 80.0
    assert "evaluating … 62%, 30.0 s left" in terminal.getvalue()
    lines = ["25%, 1 min 00 s left", "50%, 40.0 s left", "62%, 30.0 s left", "1 min 20 s"]
    assert file.getvalue().splitlines() == [f"evaluating: {line}" for line in lines]


def test_a_step_of_which_nobody_knows_what_is_left_says_how_long_it_has_been_going_on() -> None:
    clock = Clock()
    with Steps(Console(file=StringIO()), clock) as steps:
        steps.begin("capturing")
        assert str(steps.__rich__()) == "capturing … "
        clock.now_s = 12.0
        assert str(steps.__rich__()) == "capturing … 12.0 s"
        steps.say("block 3")
        assert str(steps.__rich__()) == "capturing … block 3, 12.0 s"
        steps.begin("planning")
        assert str(steps.__rich__()) == "planning … "


def test_elsewhere_than_on_a_terminal_a_long_step_speaks_now_and_then_although_nobody_knows_how_far_it_is() -> None:
    out, clock = StringIO(), Clock()
    with Steps(Console(file=out), clock) as steps:
        steps.begin("planning for 64 nodes")
        for now_s in (5.0, 12.0, 15.0, 23.0, 200.0, 212.0, 230.0):
            clock.now_s = now_s
            steps.speak()
    lines = ["12.0 s so far", "23.0 s so far", "3 min 20 s so far", "3 min 50 s so far", "3 min 50 s"]
    assert out.getvalue().splitlines() == [f"planning for 64 nodes: {line}" for line in lines]


def test_a_quiet_console_hears_nothing() -> None:
    out, clock = StringIO(), Clock()
    with Steps(Console(file=out, quiet=True), clock) as steps:
        steps.begin("planning")
        clock.now_s = 60.0
        steps.speak()
        steps.done(0.5)
    assert out.getvalue() == ""
