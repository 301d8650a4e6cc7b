"""A run's figures in the text format of Prometheus (version 0.0.4). Pure.

In: the document of a page. Out: lines. A figure that is not known has no line.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HELP: Mapping[str, str] = {
    "up": "Whether the run goes on.",
    "samples": "Samples that the fleet has trained on.",
    "samples_per_second": "Rate of the fleet.",
    "predicted_samples_per_second": "Rate of the fleet that the plan predicts.",
    "loss": "Training loss, smoothed.",
    "held_out_loss": "Loss of the last evaluation on the held-out set.",
    "rounds_committed": "Rounds of averaging that were committed.",
    "round_age_seconds": "Seconds of training since the last committed round.",
    "round_seconds": "Seconds that the last committed round took.",
    "round_slowest_hop_bytes_per_second": "Rate of the slowest hop of the last committed round.",
    "round_slowest_hop_planned_bytes_per_second": "What one flow may have there, by the plan.",
    "checkpoint_age_seconds": "Seconds of training since the last checkpoint.",
    "cluster_trains": "Whether the cluster trains.",
    "cluster_samples_per_second": "Rate of the cluster.",
    "cluster_loss": "Training loss of the cluster, smoothed.",
    "cluster_lag_rounds": "Committed rounds that the cluster has not merged.",
    "cluster_round_trip_seconds": "Round trip of a micro-batch without waiting for stages, as measured.",
    "cluster_planned_round_trip_seconds": "The round trip that the plan predicts.",
    "cluster_window": "Micro-batches that may be in flight.",
    "stage_busy_ratio": "Share of its time in which the stage computed.",
    "stage_waiting_ratio": "Share of its time in which the stage waited.",
    "stage_staleness_updates": "Mean staleness of the gradients of its last update.",
    "stage_tensor_bytes": "The most bytes that its tensors took.",
    "stage_planned_tensor_bytes": "The bytes that the plan predicts for them.",
}


def metrics_text(document: Mapping[str, Any]) -> str:
    """The figures of a page's document, each with its help and its type."""
    values: dict[str, list[str]] = {name: [] for name in _HELP}
    for name, labels, value in _figures(document):
        if value is not None:
            values[name].append(f"ravnest_{name}{_labels(labels)} {float(value):.10g}")
    lines = []
    for name, found in values.items():
        if found:
            lines += [f"# HELP ravnest_{name} {_HELP[name]}", f"# TYPE ravnest_{name} gauge", *found]
    return "\n".join(lines) + "\n"


Figure = tuple[str, Sequence[tuple[str, str]], Any]


def _figures(document: Mapping[str, Any]) -> Iterator[Figure]:
    run = [("run", document["run"]["name"])]
    progress, rounds = document.get("progress") or {}, document.get("rounds") or {}
    yield "up", run, document["run"]["state"] == "running"
    yield "samples", run, progress.get("samples")
    yield "samples_per_second", run, progress.get("samples_per_s")
    yield "predicted_samples_per_second", run, document["predicted"]["samples_per_s"]
    yield "loss", run, progress.get("loss")
    yield "held_out_loss", run, (document.get("held_out") or {}).get("loss")
    yield "rounds_committed", run, rounds.get("committed")
    yield "round_age_seconds", run, rounds.get("age_s")
    yield "round_seconds", run, rounds.get("seconds")
    hop = rounds.get("slowest_hop") or {}
    yield "round_slowest_hop_bytes_per_second", run, hop.get("hop_bytes_per_s")
    yield "round_slowest_hop_planned_bytes_per_second", run, hop.get("planned_bytes_per_s")
    yield "checkpoint_age_seconds", run, (document.get("checkpoint") or {}).get("age_s")
    for cluster in document["clusters"]:
        of = [*run, ("cluster", cluster["cluster"])]
        yield "cluster_trains", of, cluster["state"] == "trains"
        yield "cluster_samples_per_second", of, cluster["samples_per_s"]
        yield "cluster_loss", of, cluster["loss"]
        yield "cluster_lag_rounds", of, cluster["lag"]
        yield "cluster_round_trip_seconds", of, cluster["round_trip_s"]
        yield "cluster_planned_round_trip_seconds", of, cluster["planned_round_trip_s"]
        yield "cluster_window", of, cluster["window"]
        for stage in cluster["stages"]:
            at = [*of, ("stage", stage["stage"]), ("node", stage["node"])]
            yield "stage_busy_ratio", at, stage["busy"]
            yield "stage_waiting_ratio", at, stage["bubble"]
            yield "stage_staleness_updates", at, stage["staleness"]
            yield "stage_tensor_bytes", at, stage["tensor_bytes"]
            yield "stage_planned_tensor_bytes", at, stage["planned_tensor_bytes"]


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
