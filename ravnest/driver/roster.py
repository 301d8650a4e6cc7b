"""The clusters of a run: which are in it, which of them train, drain, leave, or only follow the rounds. Pure.

In: who comes and goes. Out: names of clusters and of their stages, and what those are told of rounds.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ravnest.driver.instructions import SendToStage
from ravnest.driver.newcomers import Newcomers
from ravnest.pipeline import stage_name
from ravnest.recovery import RETURNS_S
from ravnest.stage import epoch_messages as em
from ravnest.stage.messages import Drained, FinishRounds


class Roster:
    """The clusters that are in a run, lost ones left out."""

    def __init__(self, clusters: Mapping[str, int], given: Mapping[str, int] = MappingProxyType({})) -> None:
        """`clusters`: by name, the number of stages. `given`: by stage, the newest round that it has contributed to."""
        self._counts = dict(clusters)
        self.newcomers = Newcomers()
        """Those of them that follow the rounds and do not train yet."""
        self.drained: dict[str, Drained] = {}
        """Those of them in whose pipelines nothing is left."""
        self.leaving: dict[str, str] = {}
        """Those of them that leave with notice, with the reason."""
        self._given = dict(given)
        self._returning: dict[str, float] = {}
        """Lost clusters that are about to be here again, and until when the rounds wait for each."""

    def __contains__(self, cluster: str) -> bool:
        return cluster in self._counts

    @property
    def names(self) -> list[str]:
        """The names of all clusters that are in the run."""
        return list(self._counts)

    @property
    def training(self) -> list[str]:
        """The names of the clusters that train: all but those that follow only."""
        return [name for name in self._counts if name not in self.newcomers]

    @property
    def staying(self) -> list[str]:
        """The names of the clusters that train and do not leave."""
        return [name for name in self.training if name not in self.leaving]

    @property
    def stages(self) -> list[str]:
        """The names of the stages of all clusters that are in the run."""
        return [stage for name in self._counts for stage in self.stages_of(name)]

    @property
    def first_stages(self) -> list[str]:
        """The stages that inject micro-batches, one in each cluster that trains."""
        return [stage_name(name, 0) for name in self.training]

    def stages_of(self, cluster: str) -> list[str]:
        """The names of a cluster's stages, in order."""
        return [stage_name(cluster, i) for i in range(self._counts[cluster])]

    def gave(self, stage: str, round_: int) -> None:
        """The stage has contributed to a round."""
        self._given[stage] = max(round_, self._given.get(stage, 0))

    def resting(self, awaited: int | None) -> frozenset[str]:
        """The clusters that may rightly compute nothing: those that do not train yet, have drained, or have contributed
        with all their stages to the round that is `awaited`, for which they may have to wait; None: no round is."""
        gave = [
            name
            for name in (self._counts if awaited is not None else ())
            if all(self._given.get(stage, 0) >= (awaited or 0) for stage in self.stages_of(name))
        ]
        return frozenset((*self.newcomers.names, *self.drained, *gave))

    def add(self, cluster: str, stages: int) -> None:
        """A cluster of so many stages has come. It follows the rounds at first."""
        self._counts[cluster] = stages
        self._returning.pop(cluster, None)
        self.newcomers.add(cluster, self.stages_of(cluster))

    def returns(self, cluster: str) -> None:
        """A cluster is being lost, and warm spares take its places: it is about to be here again."""
        if cluster in self.staying:
            self._returning[cluster] = math.inf

    def awaits(self, cluster: str) -> bool:
        """Whether a cluster is about to be here again."""
        return cluster in self._returning

    def overdue(self, now_s: float) -> list[str]:
        """The clusters for which the rounds have waited long enough, each once."""
        until_s = {name: min(at_s, now_s + RETURNS_S) for name, at_s in self._returning.items()}
        self._returning = {name: at_s for name, at_s in until_s.items() if now_s < at_s}
        return [name for name in until_s if name not in self._returning]

    def remove(self, cluster: str) -> str | None:
        """The cluster is gone. Returns the reason for which it was leaving; None where it was not."""
        for stage in self.stages_of(cluster):
            self._given.pop(stage, None)
        del self._counts[cluster]
        self.newcomers.remove(cluster)
        self.drained.pop(cluster, None)
        return self.leaving.pop(cluster, None)

    def follow_rounds(self, clusters: Iterable[str], opened: int) -> list[SendToStage]:
        """Clusters that do not train yet take part in every open round at once, without weight."""
        order = em.FollowRounds(up_to=opened)
        return [SendToStage(stage, order) for cluster in clusters for stage in self.stages_of(cluster)]

    def finish_rounds(self, cluster: str, opened: int, *, final: bool) -> list[SendToStage]:
        """A drained cluster contributes to every open round at once: others may wait for it at their lag limit."""
        order = FinishRounds(up_to=opened, updates=self.drained[cluster].updates, final=final)
        return [SendToStage(stage, order) for stage in self.stages_of(cluster)]
