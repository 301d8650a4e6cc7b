"""Trains PyTorch models on unequal machines that are joined by home internet.

In: machines (nodes.yaml or a `Fleet`) and what to train (job.yaml or a `Job`). Out: a plan, what to expect of it, and
trained weights. Importing this package loads nothing else; each name is loaded when it is first used.

    plan = ravnest.plan("nodes.yaml")
    ravnest.save_plan(plan, "plan.yaml")
    result = ravnest.run(plan)
    print(result.held_out_loss)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster_planner import Cluster, Fleet, Link, Node, NoFeasiblePlan, Plan, RegionLink, Spare, Stage
    from ravnest.api import evaluate, explain_plan, export, plan, rehearse, run, simulate
    from ravnest.driver.observe.place_events import (
        ClusterReplannedEvent,
        NodeJoinedEvent,
        NodeSlowEvent,
        NodesSharedOutEvent,
        PlannedAnewEvent,
        ProgressHandedOnEvent,
        SpareWarmEvent,
    )
    from ravnest.driver.observe.report import (
        CheckpointRefusedEvent,
        CheckpointWrittenEvent,
        ClusterLostEvent,
        ClusterProgress,
        ClusterReplacedEvent,
        EvaluatedEvent,
        NoticeEvent,
        Observer,
        PhaseEvent,
        ProgressEvent,
        ReplacementFailedEvent,
        RestartedEvent,
        RoundCommittedEvent,
        RunEvent,
        RunLimit,
        RunResult,
        StageRestoredEvent,
        StageSuspectedEvent,
        TakenOverEvent,
        WaitsForNodesEvent,
    )
    from ravnest.errors import Interrupted, InvalidInput, ModelNotSplittable, NodeLost, RavnestError, RunFailed
    from ravnest.files import load_fleet, load_job, load_plan, save_fleet, save_plan
    from ravnest.job.config import Job
    from ravnest.machines import doctor, profile
    from ravnest.planning.prepare_plan import ExplainedPlan
    from ravnest.profiling.doctor import DoctorReport
    from ravnest.profiling.profile import Profile
    from ravnest.rehearsal.comparison import Rehearsal
    from ravnest.results.evaluation import Evaluation
    from ravnest.results.export import Exported
    from ravnest.simulator import BandwidthChange, Scenario, SimulatedRun, Stall, StallRate

_NAMES = {
    "cluster_planner": "Cluster Fleet Link NoFeasiblePlan Node Plan RegionLink Spare Stage",
    "ravnest.api": "evaluate explain_plan export plan rehearse run simulate",
    "ravnest.driver.observe.place_events": "ClusterReplannedEvent NodeJoinedEvent NodeSlowEvent NodesSharedOutEvent "
    "PlannedAnewEvent ProgressHandedOnEvent SpareWarmEvent",
    "ravnest.driver.observe.report": "CheckpointRefusedEvent CheckpointWrittenEvent ClusterLostEvent ClusterProgress "
    "ClusterReplacedEvent EvaluatedEvent NoticeEvent Observer PhaseEvent "
    "ProgressEvent ReplacementFailedEvent RestartedEvent RoundCommittedEvent RunEvent "
    "RunLimit RunResult StageRestoredEvent StageSuspectedEvent TakenOverEvent "
    "WaitsForNodesEvent",
    "ravnest.errors": "Interrupted InvalidInput ModelNotSplittable NodeLost RavnestError RunFailed",
    "ravnest.files": "load_fleet load_job load_plan save_fleet save_plan",
    "ravnest.job.config": "Job",
    "ravnest.machines": "doctor profile",
    "ravnest.planning.prepare_plan": "ExplainedPlan",
    "ravnest.rehearsal.comparison": "Rehearsal",
    "ravnest.profiling.doctor": "DoctorReport",
    "ravnest.profiling.profile": "Profile",
    "ravnest.results.evaluation": "Evaluation",
    "ravnest.results.export": "Exported",
    "ravnest.simulator": "BandwidthChange Scenario SimulatedRun Stall StallRate",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BandwidthChange",
    "CheckpointRefusedEvent",
    "CheckpointWrittenEvent",
    "Cluster",
    "ClusterLostEvent",
    "ClusterProgress",
    "ClusterReplacedEvent",
    "ClusterReplannedEvent",
    "DoctorReport",
    "EvaluatedEvent",
    "Evaluation",
    "ExplainedPlan",
    "Exported",
    "Fleet",
    "Interrupted",
    "InvalidInput",
    "Job",
    "Link",
    "ModelNotSplittable",
    "NoFeasiblePlan",
    "Node",
    "NodeJoinedEvent",
    "NodeLost",
    "NodeSlowEvent",
    "NodesSharedOutEvent",
    "NoticeEvent",
    "Observer",
    "PhaseEvent",
    "Plan",
    "PlannedAnewEvent",
    "Profile",
    "ProgressEvent",
    "ProgressHandedOnEvent",
    "RavnestError",
    "RegionLink",
    "Rehearsal",
    "ReplacementFailedEvent",
    "RestartedEvent",
    "RoundCommittedEvent",
    "RunEvent",
    "RunFailed",
    "RunLimit",
    "RunResult",
    "Scenario",
    "SimulatedRun",
    "Spare",
    "SpareWarmEvent",
    "Stage",
    "StageRestoredEvent",
    "StageSuspectedEvent",
    "Stall",
    "StallRate",
    "TakenOverEvent",
    "WaitsForNodesEvent",
    "doctor",
    "evaluate",
    "explain_plan",
    "export",
    "load_fleet",
    "load_job",
    "load_plan",
    "plan",
    "profile",
    "rehearse",
    "run",
    "save_fleet",
    "save_plan",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
