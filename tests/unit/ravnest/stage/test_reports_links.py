from types import SimpleNamespace
from typing import Any

from ravnest.stage import messages as m
from ravnest.stage.reports import LINKS_EVERY_S, Reports
from ring_allreduce.transport import Lane, TransportStats


def test_what_was_sent_to_other_stages_is_told_now_and_then() -> None:
    told: list[Any] = []
    clock, sent = [0.0], TransportStats()
    peaks: Any = SimpleNamespace(grown=False, bytes={})
    ledger: Any = SimpleNamespace(seconds={})
    reports = Reports(told.append, ledger, (), peaks, None, lambda: clock[0], lambda: None, sent)

    def at(now_s: float) -> list[m.LinksUsed]:
        clock[0] = now_s
        told.clear()
        reports.all()
        return [each for each in told if isinstance(each, m.LinksUsed)]

    sent.sent[m.DRIVER, Lane.PIPELINE].add(9)
    assert at(1.0) == []  # the driver's machine has no link in the plan
    sent.sent["c0.s1", Lane.PIPELINE].add(100)
    sent.sent["c0.s1", Lane.PIPELINE].add(100)
    sent.sent["c1.s0", Lane.BULK].add(7)
    assert at(2.0) == [m.LinksUsed(pipeline_bytes={"c0.s1": 200}, bulk_bytes={"c1.s0": 7})]
    sent.sent["c1.s0", Lane.BULK].add(7)
    assert at(2.0 + LINKS_EVERY_S / 2) == []
    assert at(2.0 + LINKS_EVERY_S) == [m.LinksUsed(pipeline_bytes={"c0.s1": 200}, bulk_bytes={"c1.s0": 14})]
