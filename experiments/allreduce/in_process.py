"""Rings whose members are objects in one process, on the transport's twin: no socket, and a clock that is a number."""

from collections.abc import Sequence

from torch import Tensor

from ring_allreduce import RingReducer, RingSpec
from ring_allreduce.ring import RING_KINDS, RingResult
from ring_allreduce.transport import Codec, InProcessNetwork, LinkShape

TURNS = 1_000_000


class Fleet:
    """The members of one ring."""

    def __init__(self, spec: RingSpec, *, max_rounds: int = 1, link: LinkShape | None = None) -> None:
        """`link`: between any two members; None: messages arrive at once."""
        self.now_s = 0.0
        pairs = [(a, b) for a in spec.members for b in spec.members if a != b]
        self._network = InProcessNetwork(now=lambda: self.now_s, links=dict.fromkeys(pairs, link) if link else None)
        endpoints = [self._network.endpoint(name, Codec(RING_KINDS)) for name in spec.members]
        self._network.connect_all()
        self._reducers = [RingReducer(endpoint, [spec], max_rounds=max_rounds) for endpoint in endpoints]
        self._endpoints = endpoints
        self._ring = spec.name
        self._results: dict[int, list[RingResult]] = {}

    def contribute(self, number: int, vectors: Sequence[Tensor], weights: Sequence[float]) -> None:
        """Round `number`: one vector and one weight for each member."""
        for reducer, vector, weight in zip(self._reducers, vectors, weights, strict=True):
            reducer.contribute(number, self._ring, vector, weight)

    def advance(self, seconds: float) -> None:
        """Let everything happen that is due within the next `seconds`."""
        end_s = self.now_s + seconds
        for _ in range(TURNS):
            moved = self._turn()
            due_s = self._network.next_due_s()
            if not moved and (due_s is None or due_s > end_s):
                self.now_s = end_s
                return
            if due_s is not None and not moved:
                self.now_s = max(self.now_s, due_s)
        raise RuntimeError(f"no end after {TURNS} turns")

    def take(self, number: int) -> list[Tensor]:
        """The averages of a round, one for each member, and commit it. Raises KeyError when it is not finished."""
        results = self._results.pop(number)
        if len(results) != len(self._reducers):
            raise KeyError(number)
        averages = [result.average.clone() for result in results]
        for reducer in self._reducers:
            reducer.commit(number)
        return averages

    def _turn(self) -> bool:
        moved = False
        for endpoint, reducer in zip(self._endpoints, self._reducers, strict=True):
            for delivery in endpoint.poll(0.0):
                reducer.on_delivery(delivery)
                moved = True
            reducer.pump()
            for result in reducer.finished():
                self._results.setdefault(result.round, []).append(result)
        return moved
