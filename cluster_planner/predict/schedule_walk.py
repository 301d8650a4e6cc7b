"""How long one update of a synchronous schedule takes, from its first forward to its optimizer step.

Walks the very order of schedules.py over all stages: a pass begins when its stage is free and its input is here; a
message leaves when its link is free. So the bubble, the latency of the first and the last micro-batch, and the waits of
1f1b for round trips longer than its stages hold are all in it. With equal stages and links that cost nothing it is the
formula: (m + p − 1) passes for m micro-batches and p stages, a bubble of (p − 1) / (m + p − 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cluster_planner.inputs.model_costs import Workload


@dataclass(frozen=True)
class Passes:
    """Seconds of one micro-batch at a stage, and of its optimizer step."""

    forward_s: float
    backward_s: float
    step_s: float


@dataclass(frozen=True)
class Hop:
    """From a stage to the next: seconds that its messages take to leave, either way, and then travel."""

    forward_s: float
    gradient_s: float
    latency_s: float


class _At(NamedTuple):
    forwards: int
    backwards: int


def update_s(work: Workload, stages: Sequence[Passes], hops: Sequence[Hop]) -> float:
    """Seconds from one update's first forward to the next one's. `hops`: one less than stages."""
    count, last = work.update_every, len(stages) - 1
    limits = [work.held(len(stages), index) for index in range(len(stages))]
    at = [_At(0, 0) for _ in stages]
    free_s = [0.0 for _ in stages]
    links_s = {(index, onward): 0.0 for index in range(last) for onward in (True, False)}
    inputs: list[list[float]] = [[0.0] * count if index == 0 else [] for index in range(len(stages))]
    gradients: list[list[float]] = [[] for _ in stages]

    def send(hop: int, onward: bool) -> float:
        seconds = hops[hop].forward_s if onward else hops[hop].gradient_s
        left_s = max(links_s[hop, onward], free_s[hop if onward else hop + 1]) + seconds
        links_s[hop, onward] = left_s
        return left_s + hops[hop].latency_s

    moved = True
    while moved:
        moved = False
        for index, stage in enumerate(stages):
            while True:
                f, b = at[index]
                if f < count and f - b < limits[index]:
                    if f == len(inputs[index]):
                        break
                    free_s[index] = max(free_s[index], inputs[index][f]) + stage.forward_s
                    at[index] = _At(f + 1, b)
                    if index < last:
                        inputs[index + 1].append(send(index, onward=True))
                    else:
                        gradients[index].append(free_s[index])
                else:
                    if b == len(gradients[index]):
                        break
                    free_s[index] = max(free_s[index], gradients[index][b]) + stage.backward_s
                    at[index] = _At(f, b + 1)
                    if index:
                        gradients[index - 1].append(send(index - 1, onward=False))
                moved = True
    # A stage makes its step before the next update's first micro-batch is here, or holds that one up.
    return max(free + stage.step_s - arrived[0] for free, stage, arrived in zip(free_s, stages, inputs, strict=True))
