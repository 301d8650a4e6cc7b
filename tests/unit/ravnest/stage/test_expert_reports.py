from types import SimpleNamespace
from typing import Any

from ravnest.experts.askers import close_grids, open_grid
from ravnest.experts.batch_calls import Asker
from ravnest.job.experts_table import ExpertsTableConfig
from ravnest.stage.expert_reports import EXPERTS_EVERY_S, ExpertsAsked, experts_asked
from ravnest.stage.messages import KINDS
from ravnest.stage.reports import Reports
from ring_allreduce.transport import TransportStats
from tests.support.experts import LocalClient, small_grid

TABLE = ExpertsTableConfig(peers=("127.0.0.1:9",))


def test_what_a_process_asked_is_told_as_a_message_now_and_then() -> None:
    asker, told, clock = Asker(LocalClient(small_grid())), list[Any](), [0.0]
    asker.figures.forwards, asker.figures.batches, asker.figures.waited_s = 6, 2, 0.25
    asker.figures.dropped["forward: late"] = 1
    peaks: Any = SimpleNamespace(grown=False, bytes={})
    ledger: Any = SimpleNamespace(seconds={})
    stats = TransportStats()
    reports = Reports(told.append, ledger, (), peaks, None, lambda: clock[0], lambda: None, stats, TABLE)
    reports.all()
    assert told == []  # no grid is open
    open_grid("test", asker)
    try:
        assert experts_asked(None) == []
        reports.all()
        clock[0] = EXPERTS_EVERY_S / 2
        reports.all()
        (message,) = told
    finally:
        close_grids()
    assert isinstance(message, ExpertsAsked)
    assert (message.grid, message.places, message.requests, message.dropped) == ("test", 4, 6, 1)
    assert (message.batches, message.waited_s, message.experts) == (2, 0.25, {})
    assert ExpertsAsked in KINDS
