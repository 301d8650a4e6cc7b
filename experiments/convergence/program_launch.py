"""A run without Ray: the stages' processes, transport, driver and checkpoints of a run, but the processes are forks.

Decides nothing about training: what `ravnest run` does between starting Ray and taking it down, with forks in the place
of actors. Those import torch anew, ten seconds each time; a fork takes none, so that many short trainings are possible.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict

from cluster_planner import Plan
from experiments.pipeline.forked import Child, fork_stage
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.driver.checkpoint_collector import CheckpointCollector
from ravnest.driver.loop import DriverLoop
from ravnest.driver.loop_parts import StageLinks
from ravnest.driver.observe import report
from ravnest.driver.observe.metrics_file import MetricsWriter
from ravnest.driver.observe.record import RunRecord
from ravnest.driver.preparation import hand_out, states_for, writer_opener
from ravnest.driver.ray.stage_actors import StageEnded
from ravnest.driver.run_rings import RunRings
from ravnest.driver.session import run_control
from ravnest.driver.stage_setups import stage_setups
from ravnest.driver.stage_watch import StageWatch
from ravnest.job.config import Job
from ravnest.job.materials import search_dirs
from ravnest.pipeline import stage_name
from ravnest.splitting import CapturedModel
from ravnest.stage import messages as m
from ring_allreduce.transport import TOKEN_BYTES, Outbox, PeerAddress, ZmqEndpoint


class Forks:
    """The stages' processes, and the news of their ends."""

    def __init__(self, children: Mapping[str, Child]) -> None:
        self._children = dict(children)

    def ended(self, timeout_s: float = 0.0) -> list[StageEnded]:
        """Each once."""
        gone = [name for name, child in self._children.items() if child.has_left()]
        for name in gone:
            self._children.pop(name)
        return [StageEnded(name, None, "its process is gone") for name in gone]


def run_forked(
    plan: Plan, job: Job, captured: CapturedModel, held_out: int, folder: RunFolder, observer: report.Observer
) -> RunRecord:
    """Train as `plan` says; writes metrics.jsonl and checkpoints. Raises RunFailed or NodeLost as a run does."""
    total = job.stop.samples
    setups = stage_setups(
        plan,
        job,
        captured,
        search_dirs=search_dirs(plan.job_file),
        threads={node.name: 1 for node in plan.fleet.nodes},
        total_samples=total,
        token=secrets.token_bytes(TOKEN_BYTES),
    )
    nodes = {
        stage_name(cluster.name, index): stage.node
        for cluster in plan.clusters
        for index, stage in enumerate(cluster.stages)
    }
    folder.path.mkdir(parents=True, exist_ok=True)
    with ExitStack() as leaving:
        children: dict[str, Child] = {}
        for name, setup in setups.items():
            children[name] = fork_stage(setup)
            leaving.callback(children[name].end)
        peers = {name: PeerAddress(**json.loads(child.read())) for name, child in children.items()}
        endpoint = ZmqEndpoint(m.DRIVER, codec=m.codec(), token=next(iter(setups.values())).transport.token)
        leaving.callback(endpoint.close)
        peers[m.DRIVER] = endpoint.address
        endpoint.connect(peers)
        for child in children.values():
            child.write(json.dumps({name: asdict(address) for name, address in peers.items()}).encode())
        writer = leaving.enter_context(MetricsWriter(folder.metrics))
        disk = leaving.enter_context(ThreadPoolExecutor(1, "disk"))
        record = RunRecord(
            folder.path,
            observer,
            writer,
            stages=list(setups),
            last_stages={name: setup.cluster for name, setup in setups.items() if setup.is_last},
            samples_per_update=job.micro_batch * job.update_every,
            total_samples=total,
            metrics=[],
        )
        outbox = Outbox(endpoint)
        hand_out(outbox, endpoint, setups.values(), states_for(setups, plan, job, None))
        DriverLoop(
            StageLinks(endpoint, outbox, Forks(children)),
            run_control(plan, job, setups, held_out, total, None),
            StageWatch(nodes, time.monotonic()),
            RunRings(plan, setups),
            CheckpointCollector(setups, writer_opener(folder, lambda: plan, job, None), disk, endpoint.wake),
            record,
            stop_wanted=lambda: False,
        ).run()
    return record
