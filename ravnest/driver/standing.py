"""Where a session stands when another driver takes it over. Pure.

In: what the driver before it has written down, and what the stages that are still there say of themselves. Out: a
`Standing`, from which accounts, rounds and membership go on. A stage knows more than the file: it has gone on since.
But what a commit counts is in the file before any stage hears of the commit, so a round that some stage has merged is
committed, and no sample counts twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ravnest.driver.run_store import DriverState
from ravnest.pipeline import stage_name, stage_place
from ravnest.stage.epoch_messages import StagePosition


@dataclass(frozen=True)
class Standing:
    """A session under way. Rounds count from its beginning."""

    clusters: tuple[str, ...]
    """The clusters that trained when they were last heard of."""
    epoch: int
    committed: int
    opened: int
    updates: Mapping[str, int]
    """By cluster of the plan: its updates so far."""
    averaged: Mapping[str, int]
    """By cluster of the plan: its updates at its snapshot for the last committed round."""
    snapshots: Mapping[int, Mapping[str, int]]
    """By round that is not committed, and cluster: its updates at its snapshot for it."""
    knows: Mapping[str, int]
    """By cluster: the newest open round that its last stage knows of."""
    evaluation: int
    """The newest evaluation that any stage knows of."""
    elapsed_s: float
    contributed: Mapping[str, int] = field(default_factory=dict)
    """By stage: the newest round that it has contributed to; none where it is not named."""
    begun: Mapping[str, int] = field(default_factory=dict)
    """By cluster of the plan: the updates from which it counts in this session; none where it is not named."""
    unmade: Mapping[str, int] = field(default_factory=dict)
    """By cluster that has come during the run: the updates from which its schedule began, which nobody made."""
    stopping: bool = False
    """Whether the run was coming to its end."""
    draining: frozenset[str] = frozenset()
    """The clusters that were told to begin nothing new."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """By cluster that is not whole any more: one of its stages that is gone."""

    @classmethod
    def of(cls, state: DriverState, positions: Mapping[str, StagePosition], stages: Mapping[str, int]) -> "Standing":
        """Where the session stands. `positions` are by stage that has answered; `stages` has the number of stages of
        each cluster of the plan."""
        clusters = tuple(name for name in stages if stage_name(name, 0) in state.stages)
        missing = {}
        for name in clusters:
            gone = [one for index in range(stages[name]) if (one := stage_name(name, index)) not in positions]
            if gone:
                missing[name] = gone[0]
        heard = list(positions.values())
        committed = max([state.committed, *(each.committed for each in heard)])
        snapshots: dict[int, dict[str, int]] = {round_: dict(taken) for round_, taken in state.snapshots.items()}
        for stage, position in positions.items():
            for round_, made in position.snapshots:
                snapshots.setdefault(round_, {})[stage_place(stage)[0]] = made
        averaged = {name: state.averaged.get(name, state.start.updates.get(name, 0)) for name in stages}
        for round_ in sorted(each for each in snapshots if each <= committed):
            averaged |= snapshots.pop(round_)
        updates = {name: max(averaged[name], state.updates.get(name, 0)) for name in stages}
        last = {name: positions.get(stage_name(name, stages[name] - 1)) for name in clusters}
        updates |= {name: max(at.version, averaged[name]) for name, at in last.items() if at is not None}
        updates |= {name: averaged[name] for name in stages if name not in clusters}
        return cls(
            clusters=clusters,
            epoch=max([state.epoch, *(each.epoch for each in heard)]),
            committed=committed,
            opened=max([state.opened, committed, *(each.opened for each in heard)]),
            updates=updates,
            averaged=averaged,
            snapshots=snapshots,
            knows={name: at.opened for name, at in last.items() if at is not None},
            evaluation=max([0, *(each.evaluation for each in heard)]),
            elapsed_s=state.elapsed_s,
            contributed={stage: at.snapshots[-1][0] for stage, at in positions.items() if at.snapshots},
            begun=dict(state.begun),
            unmade=dict(state.unmade),
            stopping=state.stopping,
            draining=frozenset(stage_place(one)[0] for one, at in positions.items() if at.drains) & set(clusters),
            missing=missing,
        )

    @property
    def away(self) -> list[str]:
        """The clusters of the plan that were lost before."""
        return [name for name in self.updates if name not in self.clusters]

    @property
    def whole(self) -> list[str]:
        """The clusters all of whose stages are there."""
        return [name for name in self.clusters if name not in self.missing]
