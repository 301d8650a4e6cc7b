import gc

from ravnest.simulator.clock import PROGRESS_EVERY, VirtualClock


def test_what_is_due_comes_in_order_and_ties_as_they_were_asked_for() -> None:
    clock, seen = VirtualClock(), []
    clock.at(2.0, seen.append, "late")
    clock.at(1.0, seen.append, "one")
    clock.at(1.0, seen.append, "two")
    clock.at(0.5, lambda word: clock.after(0.5, seen.append, word), "asked for last")
    clock.run()
    assert seen == ["one", "two", "asked for last", "late"]
    assert (clock.now_s, clock.events) == (2.0, 5)


def test_progress_is_told_now_and_then_and_collecting_goes_on_afterwards() -> None:
    clock, told = VirtualClock(), []
    for number in range(PROGRESS_EVERY + 1):
        clock.at(float(number), lambda _: None, None)
    assert gc.isenabled()
    clock.run(lambda: told.append((clock.events, gc.isenabled())))
    assert told == [(PROGRESS_EVERY, False), (PROGRESS_EVERY + 1, False)]
    assert gc.isenabled()
