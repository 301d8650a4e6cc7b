from ravnest.pipeline import events as ev
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
