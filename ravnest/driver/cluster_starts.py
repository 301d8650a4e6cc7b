"""The processes of lost clusters, as they are started anew while a run goes on.

In: what `Replacements` orders, and what becomes of the processes. Out: processes that listen and know their peers, and
clusters that can join. Nothing here waits: the driver's loop asks at each turn.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from cluster_planner import Plan
from ravnest.driver.instructions import Instruction, RecordClusterLost, RecordRoundCommitted
from ravnest.driver.planning_anew import NodesThere
from ravnest.driver.run_rings import RunRings
from ravnest.driver.warm_spares import WarmSpares
from ravnest.errors import RavnestError, RunFailed
from ravnest.pipeline import stage_name, stage_place
from ravnest.recovery.orders import MoveCluster, SharedOut, StartCluster, TryFailed
from ravnest.recovery.replacing import LOOK_AGAIN_S, Replacements
from ravnest.stage.epoch_messages import NoticeGiven
from ravnest.stage.messages import DRIVER
from ravnest.stage.setup import StageAddress, StageSetup
from ring_allreduce.transport import Delivery, Endpoint, PeerAddress


class ClusterProcesses(Protocol):
    """Who starts and ends the processes of stages: Ray in a real run. No method waits for a process."""

    def alive(self, plan: Plan) -> set[str]:
        """The nodes of the plan that can run stages now."""
        ...

    def begin(self, plan: Plan, setups: Mapping[str, StageSetup]) -> None:
        """End what is left of these stages, and start a process for each, on the node that the plan says: where a ready
        one waits there, it is that.

        Raises InvalidInput or RunFailed where that is not possible.
        """
        ...

    @property
    def ready(self) -> Collection[str]:
        """The stages whose processes have ended, and on whose nodes a ready process waits to take their place."""
        ...

    @property
    def ends_told(self) -> Collection[str]:
        """The stages whose processes have ended, as their machines tell, which answer so. Until `end`."""
        ...

    @property
    def ready_nodes(self) -> Collection[str]:
        """The nodes on which a ready process waits, which can be any stage."""
        ...

    def keep_ready(self, plan: Plan, free: Collection[str], gone: Collection[str]) -> None:
        """Make a process ready on each node of the plan where nothing runs, `free`, and end those on nodes that are
        `gone`. Raises InvalidInput or RunFailed where that is not possible."""
        ...

    def prepared(self, stages: list[str]) -> Mapping[str, StageAddress | str]:
        """Those of these stages whose processes listen, with their addresses, or have failed, with the reason."""
        ...

    def enter(self, peers: Mapping[str, PeerAddress], stages: list[str]) -> None:
        """Let these stages enter their loops. `peers` are those that they know at first."""
        ...

    def end(self, stages: list[str]) -> None:
        """End the processes of these stages, whatever they do."""
        ...


@dataclass(frozen=True)
class Listening:
    """All processes of a cluster listen: it can join. `nodes` names the node of each stage."""

    cluster: str
    nodes: Mapping[str, str]


News = Listening | StartCluster | SharedOut | MoveCluster | TryFailed


class ClusterStarts:
    """Starts lost clusters anew. It belongs to the driver's thread."""

    def __init__(
        self,
        replacements: Replacements,
        processes: ClusterProcesses,
        setups: Callable[[Plan], Mapping[str, StageSetup]],
        check: Callable[[Mapping[str, StageAddress], Mapping[str, str]], None],
        warm: WarmSpares | None = None,
        there: NodesThere | None = None,
    ) -> None:
        """
        Arguments:
            setups: makes the setups of all stages by a plan that has other nodes for some, or other cuts.
            check: raises InvalidInput where stages at these addresses, on these nodes by stage, cannot take part,
                since they read other data.
            warm: the warm spares of the run, which take the places of lost stages; None: there are none.
            there: says which nodes are there, so that ready processes wait where nothing runs; None: none do.
        """
        self.warm = warm
        self.replacements = replacements
        self._processes = processes
        self._setups = setups
        self._check = check
        self._there = there
        self._look_s = 0.0
        """When it is looked next where nothing runs."""
        self._asked = False
        """Whether it was asked for that look already: an answer from before it is too old."""
        self._found: dict[str, dict[str, StageAddress]] = {}
        self._kept: dict[str, dict[str, int]] = {}
        """By lost cluster: its stages that stand by, with the epoch from which on they speak as such."""
        self._gone: dict[str, set[str]] = {}
        """By lost cluster: its stages that were lost, or whose nodes left."""
        self._silent: dict[str, set[str]] = {}
        """By lost cluster: the nodes of those of them whose ends nobody has told, so that their machines may stand
        still. What waits there may not answer."""
        self._warm: dict[str, set[str]] = {}
        """By cluster that is being started: its stages whose places are taken by warm spares."""
        self._broken: dict[str, str] = {}
        """By cluster that is being started: why that cannot become anything."""

    def lost(self, lost: RecordClusterLost, epoch: int, now_s: float) -> set[str]:
        """A cluster is lost. Returns its stages that stand by, which speak in `epoch` or a later one from now on."""
        nodes = self._nodes_of(lost.cluster)
        self._gone[lost.cluster] = {
            stage
            for stage, node in nodes.items()
            if (node in self.replacements.left if lost.with_notice else stage not in lost.standing_by)
        }
        ready = self._processes.ready
        untold = self._gone[lost.cluster].difference(ready, self._processes.ends_told)
        self._silent[lost.cluster] = {nodes[stage] for stage in untold}
        at_once = not lost.with_notice and self._gone[lost.cluster] <= {*self._holding(), *ready}
        stage = "" if lost.with_notice else lost.stage
        self.replacements.lost(lost.cluster, lost.samples, now_s, at_once=at_once, stage=stage)
        self._kept[lost.cluster] = dict.fromkeys(lost.standing_by, epoch)
        return set(lost.standing_by)

    def ended(self, stage: str) -> None:
        """The process of a stage has ended. Where it stood by, the stage is one more that has to be started."""
        if self.warm is not None:
            self.warm.lost(stage, "its process has ended")
        cluster, _ = stage_place(stage)
        if stage in self._warm.get(cluster, ()) and cluster in self._found:
            self._broken[cluster] = f"the warm spare that took the place of {stage} has ended"
        if cluster in self._silent:  # its machine answers, after all
            self._silent[cluster].discard(self._nodes_of(cluster).get(stage, ""))
        kept = self._kept.get(cluster, {}).pop(stage, None)
        if kept is not None:
            self._gone.setdefault(cluster, set()).add(stage)
        if kept is not None and cluster in self._found:
            self._broken[cluster] = f"{stage}, which stood by, has ended"

    def node_left(self, node: str, *, by_clock: bool = False, noticed: bool = False) -> None:
        """A node leaves with notice (NodesLeft.leave): no spare stays, and nothing begins there before it is back."""
        self.replacements.node_left(node, by_clock=by_clock, noticed=noticed)
        if self.warm is not None:
            self.warm.node_left(node)

    def returns(self, stage: str) -> bool:
        """Whether the cluster of a stage that is lost is there again at once: its warm spare holds the anchor."""
        return self.warm is not None and stage in self.warm.holding

    def stands_by(self, stage: str) -> bool:
        """Whether the stage keeps its state for a cluster that is lost."""
        return any(stage in kept for kept in self._kept.values())

    def turn(self, rings: RunRings, endpoint: Endpoint, epoch: int, now_s: float, rest_s: float) -> list[News]:
        """Do what is due. `epoch` is the epoch of membership, older than any that the new processes take part in.

        The run goes on for `rest_s` seconds. Returns the clusters that are started otherwise than they were, those
        that can join now, those whose nodes others may have, those that are better planned anew, and failed tries.
        """
        out: list[News] = []
        while self.replacements.due(now_s):
            alive = self._processes.alive(self.replacements.plan)
            there = {stage for kept in self._kept.values() for stage in kept}
            ready = set(self._processes.ready_nodes).difference(*self._silent.values())
            for order in self.replacements.tick(alive, now_s, rest_s, self._holding(), there, ready):
                if isinstance(order, StartCluster):
                    failed = self._start(order, rings, epoch, now_s)
                    out += failed if failed is not None else [order] if order.reason else []
                elif isinstance(order, SharedOut | MoveCluster):
                    out.append(order)
                else:
                    self.end(order.cluster, rings)
                    out.append(order)
        for cluster in self.replacements.starting:
            out += self._look(cluster, rings, endpoint, now_s)
        return out

    def take_of_spare(self, delivery: Delivery, now_s: float) -> bool:
        """Take a delivery of a warm spare. Returns whether it was one's."""
        if self.warm is None or delivery.sender not in self.warm:
            return False
        if isinstance(delivery.message, NoticeGiven):
            self.node_left(self.warm.node_of(delivery.sender), noticed=True)
        taken = self.warm.take(delivery, now_s)
        cluster, _ = ("", 0) if taken is None else stage_place(taken.stage)
        if taken is not None and taken.stage in self._warm.get(cluster, ()) and cluster in self._found:
            self._found[cluster][taken.stage] = taken.at
        return True

    def observe(self, instruction: Instruction) -> None:
        """What has been carried out: a round that is committed, say."""
        if isinstance(instruction, RecordRoundCommitted):
            self.replacements.averaged(instruction.averaged)
        if self.warm is not None:
            self.warm.observe(instruction)

    def shadow(self, now_s: float, *, trains: bool = True) -> None:
        """Start and watch warm spares, and keep processes ready where nothing runs, where the run trains."""
        if self.warm is not None and trains:
            self.warm.turn(lambda plan: set(self._processes.alive(plan)) - self.replacements.left, now_s)
        if self._there is not None and trains and now_s >= self._look_s:
            asked, self._asked = self._asked, True
            with suppress(RavnestError):  # Ray has not answered yet, or a node has gone since: it is looked again
                alive = self._there(self.replacements.plan)
                if asked:
                    self._look_s, self._asked = now_s + LOOK_AGAIN_S, False
                    self._keep_ready(alive - self.replacements.left)

    def _keep_ready(self, there: set[str]) -> None:
        plan = self.replacements.plan
        busy = {stage.node for cluster in self.replacements.begun for stage in cluster.stages}
        busy |= {self._nodes_of(name)[stage] for name, kept in self._kept.items() for stage in kept}
        busy |= set() if self.warm is None else self.warm.nodes
        gone = set(plan.fleet.names) - there
        for each in self._silent.values():
            each.difference_update(gone)  # what waits there when they are back is new
        self._processes.keep_ready(plan, there - busy, gone)

    def failed(self, cluster: str, reason: str, rings: RunRings, now_s: float, stage: str = "") -> list[TryFailed]:
        """A try to start the cluster has failed, by this `stage` where that is known: end its processes. Returns what
        there is to say."""
        self.end(cluster, rings)
        said = self.replacements.failed(cluster, reason, now_s, stage)
        return [each for each in said if isinstance(each, TryFailed)]

    def end(self, cluster: str, rings: RunRings) -> None:
        """End the processes of a cluster that is not in the run."""
        self._found.pop(cluster, None)
        self._kept.pop(cluster, None)
        self._warm.pop(cluster, None)
        self._broken.pop(cluster, None)
        self._processes.end(list(rings.of_cluster(cluster)))

    def _start(self, order: StartCluster, rings: RunRings, epoch: int, now_s: float) -> list[TryFailed] | None:
        """Start the processes of a cluster. Where that cannot be, neither the plan nor the rings have it then, and what
        there is to say is returned; None where it can."""
        try:
            made = dict(self._setups_of(order, rings))
            if order.placement.how == "other cuts":
                self.end(order.cluster, rings)  # by the names that its stages had: other cuts may make fewer of them
            kept = self._kept.setdefault(order.cluster, {})
            taken = self._take_places(order, epoch)
            made |= taken
            setups = {
                name: replace(
                    setup, transport=replace(setup.transport, joins=True, epoch=kept.get(name, epoch)), initial=()
                )
                for name, setup in made.items()
            }
            fresh = {name: setup for name, setup in setups.items() if name not in kept and name not in taken}
            if fresh:
                self._processes.begin(order.plan, fresh)
        except RavnestError as error:
            self.end(order.cluster, rings)
            said = self.replacements.refused(order.cluster, str(error), now_s)
            return [each for each in said if isinstance(each, TryFailed)]
        self._found[order.cluster] = {}
        rings.begin_anew(order.plan, setups, {})
        return None

    def _take_places(self, order: StartCluster, epoch: int) -> dict[str, StageSetup]:
        """Let warm spares take the places that the order says. Returns the setups of these stages."""
        stages = order.placement.warm
        self._warm[order.cluster] = set(stages)
        if self.warm is None:
            return {}
        taken = {stage: self.warm.take_place(stage, epoch) for stage in stages}
        anew = order.cluster if order.placement.how in ("other cuts", "nodes that came") else None
        self.warm.leave({stage.node for stage in order.plan.cluster(order.cluster).stages}, anew)
        return taken

    def _holding(self) -> Mapping[str, str]:
        """The nodes of warm spares, by the lost stage of which they hold the anchor."""
        if self.warm is None:
            return {}
        lost = {stage for gone in self._gone.values() for stage in gone}
        return {stage: node for stage, node in self.warm.holding.items() if stage in lost}

    def _nodes_of(self, cluster: str) -> dict[str, str]:
        stages = self.replacements.plan.cluster(cluster).stages
        return {stage_name(cluster, index): stage.node for index, stage in enumerate(stages)}

    def _setups_of(self, order: StartCluster, rings: RunRings) -> Mapping[str, StageSetup]:
        before = {cluster.name: cluster for cluster in rings.plan.clusters}.get(order.cluster)
        if before == order.plan.cluster(order.cluster) or order.placement.how == "warm spares":
            return rings.of_cluster(order.cluster)  # making the setups of a large model takes seconds
        made = {name: setup for name, setup in self._setups(order.plan).items() if setup.cluster == order.cluster}
        if not rings.fit(made):
            raise RunFailed("with other cuts its tied parameters would be averaged otherwise than the others' are")
        return made

    def _look(self, cluster: str, rings: RunRings, endpoint: Endpoint, now_s: float) -> list[Listening | TryFailed]:
        if cluster in self._broken:
            return [*self.failed(cluster, self._broken[cluster], rings, now_s)]
        setups, found, kept = rings.of_cluster(cluster), self._found[cluster], self._kept.get(cluster, {})
        awaited = [name for name in setups if name not in found and name not in self._warm.get(cluster, ())]
        for stage, at in self._processes.prepared(awaited).items():
            if isinstance(at, str):
                return [*self.failed(cluster, f"{stage} could not start: {at}", rings, now_s, stage)]
            found[stage] = at
        if len(found.keys() | kept.keys()) < len(setups):
            return []
        nodes = self._nodes_of(cluster)
        try:
            self._check(found, nodes)
        except RavnestError as error:
            return [*self.failed(cluster, str(error), rings, now_s)]
        peers = {stage: at.peer for stage, at in found.items()}
        endpoint.connect(peers)
        rings.begin_anew(rings.plan, setups, peers)
        there = {*kept, *self._warm.pop(cluster, ())}
        self._processes.enter({**peers, DRIVER: endpoint.address}, [name for name in setups if name not in there])
        self._kept.pop(cluster, None)
        self._gone.pop(cluster, None)
        self._silent.pop(cluster, None)
        self.replacements.listening(cluster, now_s)
        return [Listening(cluster, nodes)]
