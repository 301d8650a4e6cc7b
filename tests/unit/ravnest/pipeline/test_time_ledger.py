from ravnest.pipeline import events as ev
from ravnest.pipeline.instructions import RunBackward, RunForward, RunUpdate
from ravnest.pipeline.time_ledger import STATES, Ledger
from tests.unit.ravnest.pipeline.bench import Bench, gradients


def test_the_ledger_says_where_the_time_went() -> None:
    first = Bench(2, 0, window=1)
    first.now_s = 3.0
    first.tell(ev.ForwardFinished(0))
    first.now_s = 10.0
    first.tell(*gradients(0))
    first.now_s = 12.0
    first.tell(ev.BackwardFinished(0))
    seconds = first.machine.ledger.seconds
    assert (seconds["forward"], seconds["window"], seconds["backward"]) == (3.0, 7.0, 2.0)
    assert (first.machine.ledger.busy_s, first.machine.ledger.waited_s) == (5.0, 7.0)


def told(ledger: Ledger) -> list[tuple[str, int | None, float, float]]:
    spans: list[tuple[str, int | None, float, float]] = []
    ledger.on_span = lambda *span: spans.append(span)
    return spans


def test_spans_end_where_the_state_changes_and_not_at_other_events() -> None:
    ledger = Ledger()
    spans = told(ledger)
    forward = RunForward(7)
    ledger.enter("start", 1.0)
    ledger.enter("forward", 2.0, forward)
    ledger.enter("forward", 2.5, forward)  # an arrival meanwhile
    ledger.enter("forward", 3.0, RunForward(8))
    ledger.enter("window", 4.0)
    ledger.enter("window", 4.5)
    ledger.enter("backward", 6.0, RunBackward(7))
    assert spans == [
        ("start", None, 1.0, 2.0),
        ("forward", 7, 2.0, 3.0),
        ("forward", 8, 3.0, 4.0),
        ("window", None, 4.0, 6.0),
    ]


def test_handing_over_is_neither_compute_nor_waiting() -> None:
    ledger = Ledger()
    spans = told(ledger)
    ledger.enter("update", 1.0, RunUpdate(3))
    ledger.computed(1.25, 2.0)
    ledger.enter("input", 2.5)
    ledger.enter("forward", 3.0, RunForward(9))
    assert spans == [("update", 3, 1.25, 2.0), ("input", None, 2.5, 3.0)]
    assert (ledger.seconds["update"], ledger.seconds["handoff"], ledger.seconds["input"]) == (0.75, 0.75, 0.5)
    assert (ledger.busy_s, ledger.waited_s) == (0.75, 0.5)


def test_all_time_is_accounted_for_once() -> None:
    ledger = Ledger()
    spans = told(ledger)
    ledger.enter("start", 0.0)
    for number in range(5):
        at_s, forward = float(number), RunForward(number)
        ledger.enter("forward", at_s, forward)
        ledger.enter("forward", at_s + 0.25, forward)
        ledger.computed(at_s + 0.125, at_s + 0.5)  # it began before the last event was heard of
        ledger.enter("input", at_s + 0.75)
    ledger.enter("drain", 5.0)
    assert [span for span in spans if span[0] == "forward"][:2] == [
        ("forward", 0, 0.125, 0.5),
        ("forward", 1, 1.125, 1.5),
    ]
    assert {state: ledger.seconds[state] for state in STATES if ledger.seconds[state]} == {
        "forward": 5 * 0.375,
        "handoff": 5 * 0.375,
        "input": 5 * 0.25,
    }
