"""What a page shows of one event of a run: its words, how good or bad it is, and what a person can do. Pure.

In: the event, and its sentence. Out: a row of plain data. What was lost is in the sentence; `to_do` says what helps, or
that nothing has to be done, and is left out where the event asks nothing of anybody. RUN stands for the run's name,
which `named` puts in.
"""

from collections.abc import Mapping

from ravnest.driver.observe import report
from ravnest.driver.observe.place_events import NodeSlowEvent, NodesSharedOutEvent

_TONES = {
    "lost": "bad",
    "not_replaced": "bad",
    "not_saved": "bad",
    "restarted": "bad",
    "waits": "bad",
    "failed": "bad",
    "notice": "note",
    "suspected": "note",
    "replanned": "note",
    "shared_out": "note",
    "planned_anew": "note",
    "handed_on": "good",
    "slow": "note",
    "replaced": "good",
    "joined": "good",
    "checkpoint": "good",
    "evaluated": "good",
}
_RUN = "\0"
_JOIN = f"`ravnest join {_RUN} NODE --nodes nodes.yaml`"


def event_row(kind: str, event: report.RunEvent, text: str, at_s: float) -> dict[str, object]:
    """Everything about one event, which `text` says in words."""
    wanted = getattr(event, "with_notice", False) or getattr(event, "at_once", False)
    tone = "note" if wanted else _TONES.get(kind, "plain")
    to_do = _to_do(event)
    return {"at_s": at_s, "kind": kind, "tone": tone, "text": text} | ({} if to_do is None else {"to_do": to_do})


def named(row: Mapping[str, object], run: str) -> dict[str, object]:
    """The row with the run's name in what a person can type."""
    to_do = row.get("to_do")
    return {**row, "to_do": to_do.replace(_RUN, run)} if isinstance(to_do, str) else dict(row)


def _to_do(event: report.RunEvent) -> str | None:
    match event:
        case report.StageSuspectedEvent(heard_again=False, node=node):
            return f"See whether {node} is on and reaches the network: if it is heard again in time, nothing is lost."
        case report.ClusterLostEvent(with_notice=True, node=node):
            return f"`ravnest join {_RUN} {node}` says that the node is back."
        case report.ClusterLostEvent(stage=stage):
            return (
                "Nothing has to be done: it is started anew by itself where that is possible."
                f" `ravnest logs {_RUN} {stage}` shows what the stage said last."
            )
        case report.ReplacementFailedEvent(again_s=None):
            return (
                f"`ravnest logs {_RUN}` shows what was tried. When that is mended, `ravnest stop {_RUN}` and then"
                f" `ravnest run --resume` with its folder bring it back."
            )
        case report.ReplacementFailedEvent():
            return "Nothing has to be done: it is tried again by itself."
        case NodesSharedOutEvent():
            return f"It comes back when there are nodes for it: start those that are missing, or add one with {_JOIN}."
        case report.CheckpointRefusedEvent():
            return "Make room where the run's folder is: what is trained from now on has no checkpoint yet."
        case report.RestartedEvent():
            return "Nothing has to be done: what had been trained since then is trained again."
        case report.WaitsForNodesEvent():
            return f"Start the machines that are missing, or add others with {_JOIN}. `ravnest stop {_RUN}` ends it."
        case NodeSlowEvent(times=times, node=node) if times > 1.0:
            return f"See what else runs on {node}, or let it go with `ravnest leave {_RUN} {node}`."
        case _:
            return None
