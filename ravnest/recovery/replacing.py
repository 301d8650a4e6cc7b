"""When, where and how often a cluster that was lost is started anew. Pure.

In: losses, the nodes that are alive, and what became of each try. Out: orders to start a cluster, and what there is to
say. Where its stages go, and whether that pays, is decided by placing.py. Where nothing can hold the model, the cluster
waits for its nodes, and those of them that are alive are spares of the others meanwhile. A cluster that is started too
often within a while stays out for good: what kills it would kill it again.

    lost ─► waiting ─ nodes are there ─► starting ─ processes listen ─► joining ─ a round is saved ─► handing ─► trains
               ▲────────────────────────── failed, after a longer wait ────────────────────────────────┘
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from cluster_planner import Cluster, Plan
from ravnest.pipeline import stage_name
from ravnest.recovery.improving import Improvement, addition, improvement
from ravnest.recovery.nodes_left import NodesLeft
from ravnest.recovery.orders import MoveCluster, Order, Replaced, SharedOut, StartCluster, TryFailed
from ravnest.recovery.placing import Nodes, Place, made_ready, place, placement, refused, slows_others
from ravnest.recovery.replanning import Situation
from ravnest.recovery.starts import AT_ONE_NODE, Starts

FIRST_WAIT_S = 2.0
"""How long a try waits after the loss: what the lost processes held has to be free."""

LONGEST_WAIT_S = 60.0
"""The wait doubles with each try that fails, up to this."""

LOOK_AGAIN_S = 10.0
"""How often it is looked whether a node is back that nothing can stand in for."""

COME_TOGETHER_S = 3.0
"""When a node has come, or is back, it is looked after so long what is better with it: others may come right then."""

LEAVES_S = 120.0
"""A cluster that is told to leave, so that it can be planned anew, has left after so long, or it does not."""

HANDOVER_S = 300.0
"""The longest time without one more piece of state arriving at a cluster that is handed the anchor."""


@dataclass
class _Away:
    lost_s: float
    samples: int
    due_s: float
    phase: Literal["waiting", "starting", "joining", "handing", "out"] = "waiting"
    began_s: float = 0.0
    failures: int = 0
    told: str = ""
    """Why it last could not be started, so that it is said once."""
    new: bool = False
    """Whether the run had no such cluster before."""
    shared: bool = False
    """Whether its nodes are spares of the others."""
    better: Improvement | None = None
    """As what it is started first, where it has left for that."""
    before: tuple[Plan, Improvement | None, str] | None = None
    """The plan before the order that is under way, with what `better` and `told` were then."""

    @property
    def waits(self) -> bool:
        """Whether it has no processes."""
        return self.phase in ("waiting", "out")


class Replacements:
    """The clusters of a run that are away, and what is done about each."""

    def __init__(
        self, plan: Plan, *, start_s: float, further: Collection[str] = (), left: NodesLeft | None = None
    ) -> None:
        """`start_s`: the longest that processes may take until they listen. `further`: the names that clusters may get
        which are made of nodes that come. `left`: the nodes on which nothing is started before they are back."""
        self._further = tuple(further)
        self.plan = plan
        """The plan, with the stages as they are now."""
        self._first = {cluster.name: cluster for cluster in plan.clusters}
        self._idle = {spare.node for spare in plan.spares}
        """The nodes of which the plan, which knew that they were there, has no better use than to leave them out."""
        self._start_s = start_s
        self._away: dict[str, _Away] = {}
        self._left = NodesLeft() if left is None else left
        self._left_look_s = 0.0
        """When it is looked next whether one of them is switched off by now, or was and is there again."""
        self._starts = Starts()
        self._slow: dict[str, float] = {}
        self._moving: dict[str, Improvement] = {}
        """The cluster that was told to leave last, and as what it is better."""
        self._moved_s = -LEAVES_S
        self._look_s: float | None = None
        """When it is looked whether a cluster that trains is better planned anew; None: nothing has changed."""

    def __contains__(self, cluster: str) -> bool:
        return cluster in self._away

    @property
    def starting(self) -> list[str]:
        """The clusters whose processes are being started and do not listen yet."""
        return [name for name, away in self._away.items() if away.phase == "starting"]

    @property
    def begun(self) -> list[Cluster]:
        """The clusters that have processes, or get them."""
        return [each for each in self.plan.clusters if not self._waits(each.name)]

    @property
    def left(self) -> frozenset[str]:
        """The nodes that have given notice, and are not back."""
        return self._left.names

    def situation(self, alive: Collection[str], leaving: Collection[str], now_s: float, rest_s: float) -> Situation:
        """How the run stands: see `Situation`. `leaving`: the clusters that are leaving it with notice."""
        settled = not leaving and not any(away.waits and not away.told for away in self._away.values())
        stay = {each.name for each in self.begun if not self.left & {stage.node for stage in each.stages}}
        nodes = frozenset(alive) - self.left
        return Situation(self.plan, nodes, stay if settled else None, now_s, rest_s, dict(self._slow))

    def lost(self, cluster: str, samples: int, now_s: float, *, at_once: bool = False, stage: str = "") -> None:
        """A cluster that trained is lost, with so many samples that it had not averaged.

        `at_once`: nothing is waited for: warm spares or ready processes can take the places of all its lost stages.
        `stage`: by which it was; empty where that is not known, or it was asked to leave.
        """
        self._ended(cluster, stage)
        better = self._moving.pop(cluster, None)
        self._away[cluster] = _Away(now_s, samples, now_s + (0.0 if at_once else FIRST_WAIT_S), better=better)

    def node_left(self, node: str, *, by_clock: bool = False, noticed: bool = False) -> None:
        """A node leaves with notice (NodesLeft.leave): nothing is started there until it is back."""
        self._left.leave(node, by_clock=by_clock, noticed=noticed)

    def node_back(self, node: str, now_s: float) -> None:
        """A node that had left is back: a cluster that waits for it is tried at once."""
        self._left.back(node)
        self._idle.discard(node)
        self._look_s = now_s + COME_TOGETHER_S
        for name, away in self._away.items():
            if away.waits:
                away.phase, away.due_s, away.told = "waiting", now_s, ""
                self._starts.forgive(name)

    def node_joined(self, plan: Plan, node: str, now_s: float) -> None:
        """A node has come that was not in the plan, and is in this one."""
        self.plan = plan
        self.node_back(node, now_s)

    def node_slow(self, node: str, times: float, now_s: float) -> None:
        """A node has come to take so many times as long as planned; 1: no more than that."""
        if self._slow.get(node, 1.0) == times:
            return
        self._slow.pop(node, None)
        if times > 1.0:
            self._slow[node] = times
        self._look_s = now_s

    def due(self, now_s: float) -> bool:
        """Whether a try is due, or one has taken too long: then `tick` has something to do."""
        if self._look_s is not None and now_s >= self._look_s:
            return True
        if self.left and now_s >= self._left_look_s:
            return True
        return any(self._is_due(away, now_s) or self._late(away, now_s) for away in self._away.values())

    def tick(
        self,
        alive: Collection[str],
        now_s: float,
        rest_s: float = math.inf,
        warm: Mapping[str, str] = MappingProxyType({}),
        there: Collection[str] = (),
        ready: Collection[str] = (),
    ) -> list[Order]:
        """Return what is to be done. `alive` are the nodes that can run stages; the run goes on for `rest_s`.

        One cluster at most is to be started, since the others' places depend on whether it can be; `due` says whether
        more is to be done at once. `warm`: the nodes of warm spares, by the lost stage of which they hold the anchor.
        `there`: the stages of lost clusters that stand by. `ready`: the nodes on which a process waits for any place.
        """
        orders: list[Order] = []
        self._left.look(alive)
        self._starts.look(alive)
        self._left_look_s = now_s + LOOK_AGAIN_S
        for name, away in list(self._away.items()):
            if late := self._late(away, now_s):
                orders += self.failed(name, late, now_s)
            elif self._is_due(away, now_s):
                nodes = replace(self._nodes_for(name, self._left.without(alive), warm), there=there, ready=ready)
                orders += self._try(name, away, nodes, now_s, rest_s)
                if away.phase == "starting":
                    return orders
        if self._look_s is not None and now_s >= self._look_s:
            orders += self._improve(self._left.without(alive), now_s, rest_s)
        return orders

    def _improve(self, alive: Collection[str], now_s: float, rest_s: float) -> list[Order]:
        """Make a further cluster of spare nodes, or plan one of those that train anew, where that pays.

        Nobody leaves for a further one: it is begun while others are started, as soon as it is known what they need.
        One is planned anew while all others train.
        """
        self._look_s = now_s + LOOK_AGAIN_S
        away = self._away.values()
        if any(each.waits and not each.told for each in away):
            return []
        if now_s >= self._moved_s + LEAVES_S:
            self._moving.clear()
        training = [each.name for each in self.plan.clusters if each.name not in self._away]
        spare = set(self._nodes_for("", alive).spare) - self._idle
        settled = not self._moving and all(each.waits for each in away)
        found = improvement(self.plan, training, spare, self._slow, rest_s) if settled and len(training) > 1 else None
        name = next((each for each in self._further if each not in self._first), None)
        others = {each.name for each in self.begun}
        more = None if name is None else addition(self.plan, name, others, spare, rest_s)
        if more is not None and (found is None or more.more_per_s >= found.more_per_s):
            self._first[more.made.name] = more.made
            self._away[more.made.name] = _Away(now_s, 0, now_s, better=more, new=True)
            return []
        if found is not None:
            self._moving[found.made.name], self._moved_s = found, now_s
            return [MoveCluster(found.made.name, found.reason)]
        if settled:
            self._look_s = None
        return []

    def listening(self, cluster: str, now_s: float) -> None:
        """The processes of a cluster listen, and it joins the run. How soon a round is saved for it is the run's."""
        self._away[cluster].phase, self._away[cluster].began_s = "joining", now_s

    def handing(self, cluster: str, now_s: float) -> None:
        """A cluster is handed its state, or one more piece of it has arrived."""
        if cluster in self._away and self._away[cluster].phase in ("joining", "handing"):
            self._away[cluster].phase, self._away[cluster].began_s = "handing", now_s

    def failed(self, cluster: str, reason: str, now_s: float, stage: str = "") -> list[Order]:
        """A try has failed, whose processes are to be ended: by this `stage`, where that is known. Returns what there
        is to say."""
        away = self._away.get(cluster)
        if away is None or away.phase not in ("starting", "joining", "handing"):
            return []
        self._ended(cluster, stage)
        if too_many := self._starts.too_many(cluster, now_s):
            away.phase = "out"
            return [TryFailed(cluster, f"{reason}; {too_many}", None)]
        wait_s = self._wait_s(away)
        away.phase, away.due_s = "waiting", now_s + wait_s
        return [TryFailed(cluster, reason, wait_s)]

    def refused(self, cluster: str, reason: str, now_s: float) -> list[Order]:
        """The order to start the cluster, which was given last, cannot be carried out, for this `reason`: nothing was
        started, and the plan is as it was before. Returns what there is to say, once for each reason."""
        away = self._away[cluster]
        assert away.before is not None
        self.plan, away.better, away.told = away.before
        self._starts.undo(cluster)
        return self._cannot(cluster, away, reason, (), now_s, self._wait_s(away))

    def averaged(self, given: Mapping[str, int]) -> None:
        """A round is committed; `given` is by cluster what of its work is in the anchor, in any unit."""
        self._starts.averaged(given)

    def trains(self, cluster: str, now_s: float) -> Replaced:
        """The cluster trains again."""
        away = self._away.pop(cluster)
        self._look_s = now_s + LOOK_AGAIN_S
        nodes = {stage_name(cluster, i): stage.node for i, stage in enumerate(self.plan.cluster(cluster).stages)}
        return Replaced(cluster, nodes, now_s - away.lost_s, away.samples, away.new)

    @staticmethod
    def _wait_s(away: _Away) -> float:
        """How long to wait after one more failure."""
        away.failures = min(away.failures + 1, 10)
        return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**away.failures)

    def _is_due(self, away: _Away, now_s: float) -> bool:
        return away.phase == "waiting" and now_s >= away.due_s

    def _late(self, away: _Away, now_s: float) -> str | None:
        """Why a try is given up that has taken too long; None for one that has not."""
        took_s = now_s - away.began_s
        if away.phase == "starting" and took_s > self._start_s:
            return f"its processes were not ready after {self._start_s:.0f} s"
        if away.phase == "handing" and took_s > HANDOVER_S:
            return f"no more of its state has arrived for {HANDOVER_S:.0f} s"
        return None

    def _ended(self, cluster: str, stage: str) -> None:
        """A stage has ended the cluster, or a try to start it; empty: nobody knows which one."""
        stages = self.plan.cluster(cluster).stages
        nodes = {stage_name(cluster, index): each.node for index, each in enumerate(stages)}
        self._starts.ended(cluster, nodes.get(stage, ""))

    def _without_who_ends_it(self, cluster: str, nodes: Nodes, rest_s: float) -> tuple[Nodes, str]:
        """Those of the nodes with which the cluster is made, and why, where one has ended it again and again that it
        can do without: that one counts as having given notice then."""
        node, others = self._starts.ends_at(cluster), {each.name for each in self.begun}
        if node is None or node not in nodes.own:
            return nodes, ""
        rest = replace(nodes, own={*nodes.own} - {node})
        found = place(self.plan, cluster, rest, others)
        if isinstance(found, str) or refused(found.placement, rest_s):
            return nodes, ""
        if slows_others(found.placement, self._first[cluster], others):
            return nodes, ""
        self._left.leave(node, noticed=True)
        self._starts.forgive(cluster)
        return rest, f"its stage on {node!r} was lost {AT_ONE_NODE} times in a row: nothing is started there"

    def _try(self, cluster: str, away: _Away, nodes: Nodes, now_s: float, rest_s: float) -> list[Order]:
        nodes, why = self._without_who_ends_it(cluster, nodes, rest_s)
        if too_many := self._starts.too_many(cluster, now_s):
            away.phase = "out"
            return [TryFailed(cluster, too_many, None)]
        others = {each.name for each in self.begun}
        found: Place | str
        better, away.better = away.better, None
        if better is not None and {stage.node for stage in better.made.stages} <= {*nodes.own, *nodes.spare}:
            made = placement(self.plan, better.made, others)
            found = Place(made_ready(made, cluster, nodes.ready), better.reason)
        elif cluster not in {each.name for each in self.plan.clusters}:
            found = "the nodes that it was to be made of are not there any more"
        else:
            found = place(self.plan, cluster, nodes, others, anew=self.plan.cluster(cluster) != self._first[cluster])
        slows = None if isinstance(found, str) else slows_others(found.placement, self._first[cluster], others)
        why_not = found if isinstance(found, str) else slows or refused(found.placement, rest_s)
        if why_not is not None and cluster not in {each.name for each in self.plan.clusters}:
            del self._away[cluster], self._first[cluster]  # as if nobody had thought of it
            return []
        if isinstance(found, str) or why_not is not None:
            shared = tuple(sorted(nodes.own)) if isinstance(found, str) or slows is not None else ()
            return self._cannot(cluster, away, str(why_not), shared, now_s)
        away.before = self.plan, better, away.told
        self.plan = found.placement.plan
        away.phase, away.began_s, away.told, away.shared = "starting", now_s, "", False
        self._starts.began(cluster, now_s, (stage.node for stage in self.plan.cluster(cluster).stages))
        return [StartCluster(cluster, found.placement, why or found.reason, rest_s)]

    def _cannot(
        self, name: str, away: _Away, reason: str, shared: tuple[str, ...], now_s: float, wait_s: float = LOOK_AGAIN_S
    ) -> list[Order]:
        """The cluster waits; `shared` are the nodes that others may have meanwhile. Both are said once."""
        away.phase, away.due_s = "waiting", now_s + wait_s
        out: list[Order] = [] if away.told == reason else [TryFailed(name, reason, wait_s)]
        away.told = reason
        if shared and not away.shared:
            out.append(SharedOut(name, shared, reason))
            away.shared = True
        return out

    def _waits(self, cluster: str) -> bool:
        return cluster in self._away and self._away[cluster].waits

    def _nodes_for(self, cluster: str, alive: Collection[str], warm: Mapping[str, str] = MappingProxyType({})) -> Nodes:
        """The nodes that a cluster may be started on: those on which nothing runs, and which no other one waits for."""
        mine, taken = set[str](), set[str]()
        for each in self.plan.clusters:
            nodes = {stage.node for stage in each.stages}
            if each.name == cluster:
                mine = nodes
            elif not self._waits(each.name) or not self._away[each.name].shared:
                taken |= nodes
        free = set(alive) - taken
        stages = {stage_name(cluster, index) for index in range(len(self.plan.cluster(cluster).stages) if mine else 0)}
        kept = {stage: node for stage, node in warm.items() if stage in stages and node in free - mine}
        return Nodes(mine & free, free - mine, kept)
