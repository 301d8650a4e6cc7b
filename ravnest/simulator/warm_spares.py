"""What is there already when a simulated cluster is lost: warm spares, stages that stand by, and ready processes.

In: what spares shadow, what becomes of nodes and clusters, and the rounds' commits. Out: bytes on the links, and the
pieces of the anchor that need not be sent. The members of a ring together send each spare that follows it one average
in every round (decision 96). A spare that takes a place while such bytes are on their way is sent that segment anew,
where a real one waits for the rest. Stages that live stand by, and hold the anchor until the next commit (decision 80).
A stage whose process has trained for a while has a ready process beside it, which has no state and can be any stage.
So has a node that is free for as long as a process takes to start.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cluster_planner import Plan, Spare, shadows_among
from ravnest.pipeline import spare_name, stage_name, stage_place
from ravnest.recovery import READY_AFTER_S, SPARE_AGAIN_S, StartCluster, beside
from ravnest.recovery.placing import WARM_S
from ravnest.simulator.run import VirtualRun
from ring_allreduce.transport import Lane

MISSING_S = 30.0
"""An average that has not come so long after its commit does not come any more, as in a run."""
_NUMBER_BYTES = 4
"""Averages and anchors travel to spares exactly."""


@dataclass(eq=False)
class _Spare:
    stage: str
    node: str
    listens: bool = False
    awaited: Counter[str] = field(default_factory=Counter)
    """By ring: the parts of its anchor and of averages that are on their way."""
    anchor: set[str] = field(default_factory=set)
    """The rings of which the anchor has not come yet."""

    @property
    def holds(self) -> bool:
        return self.listens and not self.anchor


@dataclass(eq=False)
class _Vector:
    """An anchor or an average that is on its way to a spare."""

    spare: _Spare
    ring: str
    parts: int
    is_anchor: bool


class WarmSpares:
    """The warm spares of one session, the stages of lost clusters that stand by, and ready processes."""

    def __init__(self, run: VirtualRun, start_s: float, place: Callable[[str], None]) -> None:
        """`start_s`: how long a process takes to start. `place`: is called with the name of each spare that listens,
        before anything is sent to it."""
        self._run = run
        self._start_s = start_s
        self._place = place
        self._spares: dict[str, _Spare] = {}
        """By the stage that is shadowed."""
        self._kept: dict[str, tuple[int, dict[str, str]]] = {}
        """By lost cluster: the rounds that were committed then, and the nodes of the stages that stand by."""
        self._looks = False
        self._began_s: dict[str, float] = {}
        """By stage: when its process began."""
        self._ready: set[str] = set()
        """The nodes on which no stage trains, and a ready process waits."""
        self._free_s: dict[str, float] = {}
        """By node that is free: since when."""

    def begin(self, plan: Plan, alive: Collection[str]) -> None:
        """The run begins: the plan's spares are there, and hold the weights that everybody begins with."""
        for spare in plan.spares:
            for of in spare.shadows if spare.node in alive else ():
                self._spares[stage_name(*of)] = _Spare(stage_name(*of), spare.node, listens=True)
        for who in self._spares:
            self._place(spare_name(who))
        stages = (stage_name(each.name, i) for each in plan.clusters for i in range(len(each.stages)))
        self._began_s = dict.fromkeys(stages, self._run.clock.now_s)
        self.ready(plan, alive, {stage.node for cluster in plan.clusters for stage in cluster.stages})

    @property
    def nodes(self) -> dict[str, str]:
        """By stage that is followed: the node of its spare."""
        return {who: each.node for who, each in self._spares.items() if each.listens}

    def holding(self, stages: Iterable[str]) -> dict[str, str]:
        """By stage, of these: the node of its warm spare, where that holds the anchor."""
        return {who: self._spares[who].node for who in stages if who in self._spares and self._spares[who].holds}

    def takers(self, nodes: Mapping[str, str]) -> set[str]:
        """Those of these lost stages whose places need no new process: a warm spare or a ready process takes them.
        `nodes`: by stage, the node on which it was."""
        return {*self.holding(nodes), *(who for who, node in nodes.items() if node in self._ready)}

    @property
    def there(self) -> set[str]:
        """The stages of lost clusters that stand by."""
        return {who for _, kept in self._kept.values() for who in kept}

    def ready(self, plan: Plan, alive: Collection[str], busy: Collection[str]) -> set[str]:
        """Return the nodes on which a ready process waits. Those that are alive and not `busy` get one."""
        now_s = self._run.clock.now_s
        free = set(alive) - set(busy) - {each.node for each in self._spares.values()}
        self._free_s = {node: self._free_s.get(node, now_s) for node in free}
        if plan.job.get("ready_processes", "auto") != "never":
            self._ready |= {node for node, since_s in self._free_s.items() if now_s >= since_s + self._start_s}
        return self._ready

    def ended(self, plan: Plan, stage: str) -> None:
        """The process of a stage has ended, and its node is there: the ready process beside it may take its place."""
        trained_s = self._run.clock.now_s - self._began_s[stage]
        wanted = plan.job.get("ready_processes", "auto") != "never"
        if wanted and trained_s >= READY_AFTER_S + self._start_s and stage in beside(plan):
            cluster, index = stage_place(stage)
            self._ready.add(plan.cluster(cluster).stages[index].node)

    def look(self, plan: Plan, alive: Collection[str]) -> None:
        """Let nodes that are free follow what they should."""
        running = {stage.node for cluster in plan.clusters for stage in cluster.stages}
        following = {stage_place(who): each.node for who, each in self._spares.items()}
        free = sorted(set(alive) - running - set(following.values()))
        if not free or any(plan.fleet.node(name).mtbf_s is None for name in running):
            return
        there = set(self._run.rounds.training)
        for of, node in shadows_among(plan, free, following).items():
            if of[0] in there:
                spare = self._spares[stage_name(*of)] = _Spare(stage_name(*of), node)
                self._run.clock.after(WARM_S if node in self._ready else self._start_s, self._listens, spare)
                self._ready.discard(node)

    def lost(self, node: str, look: Callable[[], None]) -> None:
        """A node is gone: `look` is called when it is looked who may follow in its place."""
        self._ready.discard(node)
        self._free_s.pop(node, None)
        gone = [who for who, each in self._spares.items() if each.node == node]
        for who in gone:
            del self._spares[who]
        if gone and not self._looks:
            self._looks = True
            self._run.clock.after(SPARE_AGAIN_S, self._look_again, look)

    def cluster_lost(self, plan: Plan, cluster: str, gone: Collection[str]) -> None:
        """A cluster is lost with the stages `gone`: its others stand by."""
        stages = enumerate(plan.cluster(cluster).stages)
        kept = {stage_name(cluster, i): each.node for i, each in stages if stage_name(cluster, i) not in gone}
        self._kept[cluster] = len(self._run.rounds.committed_s), kept
        for stage in kept:
            self.ended(plan, stage)  # whatever the stages on these nodes will be

    def take_places(self, order: StartCluster) -> set[tuple[str, str]]:
        """Let spares take the places that the order says. Returns the segments that need not be sent, as (stage, ring),
        as far as that is known: see `held`."""
        taken = {who: self._spares.pop(who) for who in order.placement.warm if who in self._spares}
        nodes = {stage.node for stage in order.plan.cluster(order.cluster).stages}
        self._ready -= nodes  # they are used up
        anew = order.placement.how in ("other cuts", "nodes that came")
        for who, each in tuple(self._spares.items()):
            if each.node in nodes or (anew and stage_place(who)[0] == order.cluster):
                del self._spares[who]
        if anew:
            self._kept.pop(order.cluster, None)
        return {(who, ring) for who, each in taken.items() for ring in self._rings(who) if not each.awaited[ring]}

    def held(self, order: StartCluster, taken: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return the segments that need not be sent to a cluster that joins now, those `taken` included."""
        committed, kept = self._kept.pop(order.cluster, (-1, {}))
        names = [stage_name(order.cluster, i) for i in range(len(order.plan.cluster(order.cluster).stages))]
        self._began_s |= {who: self._run.clock.now_s for who in names if who not in kept}
        if committed != len(self._run.rounds.committed_s):
            return taken
        stages = enumerate(order.plan.cluster(order.cluster).stages)
        there = [who for i, each in stages if kept.get(who := stage_name(order.cluster, i)) == each.node]
        return taken | {(who, ring) for who in there for ring in self._rings(who)}

    def committed(self) -> None:
        """A round is committed: its average is sent to whoever follows."""
        for spare in self._spares.values():
            for ring in self._rings(spare.stage) if spare.listens else ():
                sent = self._send(spare, ring, self._run.rounds.members(ring), is_anchor=False)
                self._run.clock.after(MISSING_S, self._late, sent)

    def _listens(self, spare: _Spare) -> None:
        if self._spares.get(spare.stage) is not spare:
            return
        spare.listens = True
        self._place(spare_name(spare.stage))
        self._follow(spare)

    def _follow(self, spare: _Spare) -> None:
        """Let the first member of each ring send a spare the anchor."""
        spare.anchor = set(self._rings(spare.stage))
        for ring in sorted(spare.anchor):
            self._send(spare, ring, self._run.rounds.members(ring)[:1], is_anchor=True)

    def _send(self, spare: _Spare, ring: str, senders: Collection[str], *, is_anchor: bool) -> _Vector:
        """Let these members of a ring send the spare a vector, of which each has an equal part."""
        sent = _Vector(spare, ring, len(senders), is_anchor)
        n_bytes = self._run.rounds.elements(ring) * _NUMBER_BYTES // max(1, len(senders))
        for who in senders:
            spare.awaited[ring] += 1
            path = self._run.network.path(who, spare_name(spare.stage))
            path.transmit(Lane.BULK, n_bytes, self._came, sent)
        return sent

    @staticmethod
    def _came(sent: _Vector) -> None:
        sent.parts -= 1
        sent.spare.awaited[sent.ring] -= 1
        if sent.is_anchor:
            sent.spare.anchor.discard(sent.ring)

    def _late(self, sent: _Vector) -> None:
        """A spare to which an average has not come by now has fallen behind, and begins anew."""
        if sent.parts and self._spares.get(sent.spare.stage) is sent.spare and sent.spare.holds:
            self._follow(sent.spare)

    def _look_again(self, look: Callable[[], None]) -> None:
        self._looks = False
        look()

    def _rings(self, stage: str) -> list[str]:
        return self._run.rounds.rings_of(stage)


def with_shadows(plan: Plan, nodes: Mapping[str, str]) -> Plan:
    """Return the plan with these warm spares, by the stage that each shadows, and with no other spares."""
    shadows: dict[str, list[tuple[str, int]]] = {}
    for who, node in nodes.items():
        shadows.setdefault(node, []).append(stage_place(who))
    spares = (Spare(node, "it is a warm spare", tuple(sorted(of))) for node, of in sorted(shadows.items()))
    return replace(plan, spares=tuple(spares))
