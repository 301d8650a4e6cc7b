"""The figures of a page in the text format of Prometheus (version 0.0.4). Pure.

In: the document of a page: of a run, of a collaboration and its people, or of the hosts of experts. Out: lines. A
figure that is not known has no line.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    "round_bytes": "Bytes that travelled for the last committed round, all rings together.",
    "round_planned_bytes": "The bytes that the plan predicts for a round.",
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
    "stage_round_bytes": "Bytes that came to the stage for the last average.",
    "stage_planned_round_bytes": "The bytes that the plan predicts for that.",
    "experts": "Experts of a grid that the run asks.",
    "experts_hosted": "Experts that its hosts say they have.",
    "experts_requests": "Requests that the stages have sent to them.",
    "experts_dropped": "Requests of these that were refused, or not answered in time.",
    "experts_wait_seconds": "Seconds that a forward or a backward of a micro-batch waits for them, on average.",
    "host_experts": "Experts that the host has.",
    "host_most_experts": "The most experts that the host takes.",
    "host_samples_per_second": "Samples that the host answered per second, as it last told.",
    "host_answer_seconds": "Seconds until an answer of the host is at a stage.",
    "host_updates": "Updates that the host has made of its experts.",
}
_MEMBERS_HELP: Mapping[str, str] = {
    "collaboration_steps": "Steps that the collaboration has made.",
    "collaboration_samples": "Samples that counted in all steps.",
    "collaboration_loss": "Training loss of the last step.",
    "collaboration_held_out": "Measures of the last evaluation on the held-out set, by name.",
    "collaboration_volunteers": "Volunteers who took part in the last step.",
    "collaboration_step_seconds": "Seconds that the last step took.",
    "collaboration_step_age_seconds": "Seconds since the last step.",
    "collaboration_people": "People who have ever taken part.",
    "person_samples": "Samples of the person that counted in a step.",
    "person_steps": "Steps in which something of the person counted.",
    "person_visits": "How often the person came.",
    "person_refused": "Contributions of the person that were refused.",
    "person_scaled": "Contributions of the person that counted for less, because they deviated from the mean.",
    "experts": "Experts of the grid.",
    "experts_hosted": "Experts that a host answers for.",
    "experts_callers": "Callers that the table knows of.",
    "host_experts": "Experts that the host has.",
    "host_most_experts": "The most experts that the host takes.",
    "host_samples_per_second": "Samples that the host answered per second, as it last told.",
    "host_answer_seconds": "Seconds that an answer of the host takes, as it last told.",
    "host_updates": "Updates that the host has made of its experts.",
}
Figure = tuple[str, Sequence[tuple[str, str]], Any]
"""The name without its prefix, the labels, and the value; None where it is not known."""


def metrics_text(document: Mapping[str, Any]) -> str:
    """The figures of a run's document, each with its help and its type."""
    return _text(_HELP, _figures(document))


def members_text(document: Mapping[str, Any]) -> str:
    """The figures of those who take part where there is no plan, as `/api/members` has them."""
    is_collaboration = document.get("kind") == "collaboration"
    return _text(_MEMBERS_HELP, _of_people(document) if is_collaboration else _of_hosts(document))


def _text(helps: Mapping[str, str], figures: Iterable[Figure]) -> str:
    values: dict[str, list[str]] = {name: [] for name in helps}
    for name, labels, value in figures:
        if value is not None:
            values[name].append(f"ravnest_{name}{_labels(labels)} {float(value):.10g}")
    lines = []
    for name, found in values.items():
        if found:
            lines += [f"# HELP ravnest_{name} {helps[name]}", f"# TYPE ravnest_{name} gauge", *found]
    return "\n".join(lines) + "\n"


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
    yield "round_bytes", run, rounds.get("bytes")
    yield "round_planned_bytes", run, rounds.get("planned_bytes")
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
            yield "stage_round_bytes", at, stage["round_bytes"]
            yield "stage_planned_round_bytes", at, stage["planned_round_bytes"]
    for grid in document["experts"]:
        of = [*run, ("grid", grid["grid"])]
        yield "experts", of, grid["experts"]
        yield "experts_hosted", of, grid["hosted"]
        yield "experts_requests", of, grid["requests"]
        yield "experts_dropped", of, grid["dropped"]
        yield "experts_wait_seconds", of, grid["wait_s"]
        for host in grid["hosts"]:
            at = [*of, ("host", host["host"])]
            yield "host_experts", at, host["experts"]
            yield "host_most_experts", at, host["most_experts"]
            yield "host_samples_per_second", at, host["samples_per_s"]
            yield "host_answer_seconds", at, host["answer_s"]
            yield "host_updates", at, host["updates"]


def _of_people(document: Mapping[str, Any]) -> Iterator[Figure]:
    whole = [("collaboration", document["name"])]
    for name, key in (
        ("steps", "steps"),
        ("samples", "samples"),
        ("loss", "loss"),
        ("volunteers", "volunteers"),
        ("step_seconds", "step_s"),
        ("step_age_seconds", "age_s"),
        ("people", "people_in_all"),
    ):
        yield f"collaboration_{name}", whole, document[key]
    for measure, value in (document["held_out"] or {}).items():
        yield "collaboration_held_out", [*whole, ("measure", measure)], value
    for person in document["people"]:
        of = [*whole, ("person", person["name"]), ("key", person["key"])]
        for key in ("samples", "steps", "visits", "refused", "scaled"):
            yield f"person_{key}", of, person[key]


def _of_hosts(document: Mapping[str, Any]) -> Iterator[Figure]:
    grid = [("grid", document["name"])]
    yield "experts", grid, document["experts"]
    yield "experts_hosted", grid, document["hosted"]
    yield "experts_callers", grid, len(document["callers"])
    for host in document["hosts"]:
        of = [*grid, ("host", host["host"]), ("address", host["address"])]
        yield "host_experts", of, len(host["experts"])
        yield "host_most_experts", of, host["most_experts"]
        yield "host_samples_per_second", of, host["samples_per_s"]
        yield "host_answer_seconds", of, host["answer_ms"] / 1e3
        yield "host_updates", of, host["updates"]


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
