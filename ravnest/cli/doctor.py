"""`ravnest doctor`: say by name what would make a run fail, before it does.

In: the command's options. Out: what was found, as tables or with --json as one document; the exit code is 0 when
nothing would fail, and 1 when something would. This module decides what is checked without a plan or without a cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ravnest.job.config import Job
    from ravnest.profiling.doctor import DoctorReport
    from ravnest.profiling.findings import Requirements

WOULD_FAIL = 1


def doctor(
    file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN_OR_NODES_YAML]", help="What the machines are to fit.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="RAY_ADDRESS", envvar="RAY_ADDRESS", help="A running Ray cluster; without one, this machine alone."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON document.")] = False,
) -> None:
    """Say per node and pair what would make a run fail: reachability, versions, tokens, memory, devices, code, data."""
    from rich.console import Console

    from cluster_planner import holds_plan, load_fleet
    from ravnest.api import read_plan
    from ravnest.cli.views.progress import note
    from ravnest.job.config import job_from_mapping

    plan = read_plan(file, note)[1] if file is not None and holds_plan(file) else None
    fleet = load_fleet(file) if file is not None and plan is None else None
    job = None if plan is None else job_from_mapping(plan.job, path=str(file), under="job.")
    from ravnest.cli.views.machines import doctor_document, show_doctor
    from ravnest.cli.views.progress import Steps
    from ravnest.planning.workload import check_workload
    from ravnest.profiling.findings import Requirements, requirements_of_fleet, requirements_of_plan

    if plan is not None and job is not None and file is not None:
        check_workload(plan, job, file)
    needs = Requirements(()) if fleet is None else requirements_of_fleet(fleet)
    needs = needs if plan is None else requirements_of_plan(plan)
    job_file = None if plan is None else Path(plan.job_file)
    with (
        redirect_stdout(sys.stderr) if as_json else nullcontext(),
        Steps(Console(stderr=True, quiet=as_json)) as steps,
    ):
        if address is None:
            checked = _alone(needs, job, job_file, steps.begin)
        else:
            checked = _together(address, needs, job, job_file, steps.begin)
    if as_json:
        json.dump(doctor_document(checked), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        show_doctor(checked, Console())
    if checked.would_fail:
        raise typer.Exit(WOULD_FAIL)


def _alone(needs: Requirements, job: Job | None, job_file: Path | None, step: Callable[[str], None]) -> DoctorReport:
    """Without a cluster, a run would place all stages on this machine."""
    import os

    from ravnest.profiling.agents import LocalAgents
    from ravnest.profiling.doctor import check_jobs, check_machines, settings_findings
    from ravnest.profiling.findings import THIS_MACHINE, RequiredNode, device_findings
    from ravnest.profiling.findings import Requirements as Own
    from ravnest.profiling.machine_facts import machine_facts

    memory = {THIS_MACHINE: sum(needs.memory_bytes.values())} if needs.memory_bytes else {}
    devices = sorted({node.device for node in needs.nodes} - {"cpu"})
    nodes = [RequiredNode(THIS_MACHINE, device=device) for device in devices or ["cpu"]]
    own = Own(nodes[:1], memory_bytes=memory)
    crew = LocalAgents(THIS_MACHINE, len(os.sched_getaffinity(0)))
    checked = check_machines(crew, own, machine_facts(), None, step)
    seen = [device.name for each in checked.facts.values() for device in each.devices]
    for device in devices[1:]:
        checked.findings += device_findings({THIS_MACHINE: device}, {THIS_MACHINE: seen})
    checked.findings += settings_findings(joins=False)
    if job is not None and job_file is not None:
        step("importing the job's code and reading its data")
        checked.findings += check_jobs(crew, own, job, job_file, [])
    return checked


def _together(
    address: str, needs: Requirements, job: Job | None, job_file: Path | None, step: Callable[[str], None]
) -> DoctorReport:
    from ravnest.driver.ray.code_shipping import job_code
    from ravnest.profiling.node_agents import RayAgents
    from ravnest.driver.ray.session import RaySession, silence_at
    from ravnest.errors import RunFailed
    from ravnest.profiling.doctor import DoctorReport, check_jobs, check_machines, join_finding, settings_findings
    from ravnest.profiling.findings import THIS_MACHINE, Finding, missing_findings, requirements_of_members
    from ravnest.profiling.machine_facts import machine_facts

    settings = settings_findings(joins=True)
    silence = silence_at(address)
    if silence is not None:
        return DoctorReport([*settings, join_finding(f"reaches no Ray cluster at {address} ({silence})")])
    if any(finding.level == "fails" for finding in settings):
        return DoctorReport(settings)  # Ray would take a minute and more to say the same
    step(f"joining Ray at {address}")
    elsewhere = [node.data.factory for node in needs.nodes if node.data is not None and node.data.factory]
    code = None if job is None or job_file is None else job_code(job, job_file, elsewhere)
    if code is not None and code.notice is not None:
        settings.append(Finding("warns", THIS_MACHINE, f"has files {code.notice}", "the job's code may miss them"))
    try:
        session = RaySession(address, code)
    except RunFailed as error:
        return DoctorReport([*settings, join_finding(str(error))])
    planned = {node.name: node.address for node in needs.nodes} or None
    try:
        with RayAgents(session, {}, planned) as crew:
            if not needs.nodes:  # no file: what Ray has is what is wanted
                needs = requirements_of_members({member.name: member.address for member in crew.members})
            checked = check_machines(crew, needs, machine_facts(), session.host, step)
            gone = [text for node in crew.dead for text in (node.name, node.address) if text]
            there = {member.name for member in crew.members}
            missing = [node for node in needs.nodes if node.name not in there]
            checked.findings[:0] = [*settings, *missing_findings(missing, gone)]
            if job is not None and job_file is not None:
                step("importing the job's code and reading its data on the nodes")
                more = check_jobs(crew, needs, job, job_file, list(checked.facts))
                checked.findings += [finding for finding in more if finding not in checked.findings]
    finally:
        session.close()
    return checked
