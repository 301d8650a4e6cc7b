"""Handing out state, span by span: initial or resumed weights, and optimizer state.

Decides which tensors each stage needs. Knows neither where they came from nor how they travel.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from ravnest.stage import messages as m
from ravnest.stage.setup import StageSetup
from ring_allreduce.transport import Endpoint, Lane, Outbox


@dataclass(frozen=True)
class StageState:
    """Where one stage starts. `optimizer`: (parameter name, state key) → tensor; empty at a run's first start."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[tuple[str, str], Tensor]
    version: int


def needed(setup: StageSetup) -> list[str]:
    """The weights and buffers of a stage, borrowed ones included, by original name."""
    return [spec.name for spec in setup.program.weight_specs]


def hand_out(
    outbox: Outbox, endpoint: Endpoint, setups: Iterable[StageSetup], states: Mapping[str, StageState]
) -> None:
    """Queue each stage's state, and tell it how much to expect."""
    for setup in setups:
        state = states[setup.name]
        names = needed(setup)
        for name in names:
            outbox.put(setup.name, m.StateTensor(part="weight", name=name), [state.weights[name]])
        for (name, key), tensor in state.optimizer.items():
            outbox.put(setup.name, m.StateTensor(part="optimizer", name=name, key=key), [tensor])
        begin = m.Begin(tensors=len(names) + len(state.optimizer), version=state.version)
        endpoint.send(setup.name, Lane.PIPELINE, begin)
