"""Who owns, borrows and passes on the tied parameters of a cluster, as its stages' programs say. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ravnest.splitting import StageProgram, ValueSpec


@dataclass(frozen=True)
class TiedSetup:
    """One stage's part, in names that are sorted in each list. Frozen parameters need none of it."""

    borrowed: tuple[str, ...] = ()
    """Used here, owned before."""
    lent: tuple[str, ...] = ()
    """Owned here, used behind."""
    passed_on: tuple[str, ...] = ()
    """Owned before, used behind."""
    specs: Mapping[str, ValueSpec] = field(default_factory=dict)
    """How each of them travels: as it is."""

    @property
    def from_behind(self) -> tuple[str, ...]:
        """Whose gradients the next stage sends."""
        return tuple(sorted((*self.lent, *self.passed_on)))

    @property
    def to_owner(self) -> tuple[str, ...]:
        """Whose gradients this stage sends to the previous one."""
        return tuple(sorted({*self.borrowed, *self.passed_on}))


def tied_setups(programs: Sequence[StageProgram]) -> list[TiedSetup]:
    """Of each stage of a cluster, in order."""
    specs = {spec.name: spec for program in programs for spec in program.borrowed if spec.requires_grad}
    borrowers: dict[str, list[int]] = {name: [] for name in specs}
    owners: dict[str, int] = {}
    for index, program in enumerate(programs):
        for spec in program.borrowed:
            if spec.name in specs:
                borrowers[spec.name].append(index)
        owners |= {spec.name: index for spec in program.parameters if spec.name in specs}
    travelling = {name: ValueSpec(name, spec.dtype, spec.shape, needs_gradient=False) for name, spec in specs.items()}
    found = []
    for index in range(len(programs)):
        behind = {name for name, users in borrowers.items() if users[-1] > index}
        found.append(
            TiedSetup(
                borrowed=tuple(sorted(name for name, users in borrowers.items() if index in users)),
                lent=tuple(sorted(name for name in behind if owners[name] == index)),
                passed_on=tuple(sorted(name for name in behind if owners[name] < index)),
                specs=travelling,
            )
        )
    return found
