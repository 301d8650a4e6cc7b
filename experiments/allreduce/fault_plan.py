"""What happens in a seeded scenario of faults, and what must come out of it: chosen and judged without running it.

Weights are powers of two, so that the total weight of a round says whose contributions are in it. What the mean of
those is, is computed here in float64, from the same seeds and by no code of ring_allreduce.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ring_allreduce.ring import bytes_per_element

Ends = Mapping[str, str]
"""Member → how it ended: "completed", the name of an error, "killed", "frozen"."""

CHUNK_ELEMENTS = 4096
"""Small chunks, so that there are many steps at which something can happen."""

Way = Literal["ring", "direct"]
WAYS: tuple[Way, ...] = ("ring", "direct")

TOLERANCE = {"exact": 1e-6, "bfloat16": 2e-2, "float16": 3e-3, "int8": 5e-2}
"""Largest error of an average, in parts of its norm, by what travels."""


Proof = Literal["epoch", "struck", "dropped", "ends"]
"""The epoch rose; the victim told so; somebody dropped a message; it shows in how members ended, if at all."""


@dataclass(frozen=True)
class Kind:
    """One fault, and what it may lead to."""

    victim: tuple[str, ...]
    """How the victim may end."""
    others: str = "completed"
    """How the others end: "completed", or the name of an error."""
    least_members: int = 2
    spared: bool = False
    """Whether everyone must be in every round, the victim included."""
    one_of_two: bool = False
    """Whether instead of the victim the member at the other end of the connection may be left out."""
    proof: Proof = "epoch"
    """What shows that the fault struck."""


COMPLETED, LEFT_OUT, REFUSED = "completed", "LeftOut", "ContributionRefused"
HEALED = Kind((COMPLETED,), spared=True, proof="struck")
DROPPED = Kind((COMPLETED,), spared=True, proof="dropped")
UNSEEN = Kind((COMPLETED,), spared=True, proof="ends")
KINDS: Mapping[str, Kind] = {
    "killed": Kind(("killed",)),
    "killed as its ring finishes": Kind(("killed",)),
    "two killed": Kind(("killed",), least_members=3),
    "frozen": Kind(("frozen",)),
    "frozen, back after it was left out": Kind((LEFT_OUT,)),
    "cut off mid-chunk": HEALED,
    "cut off for good": Kind((LEFT_OUT, COMPLETED), one_of_two=True),
    "control connection cut": Kind(("PeerLost", LEFT_OUT)),
    "slow": UNSEEN,
    "does not call": Kind((LEFT_OUT,)),
    "wrong size": Kind((REFUSED,)),
    "other dtype": Kind((REFUSED,)),
    "NaN": Kind((REFUSED,)),
    "one chunk of NaN": HEALED,
    # Where one member had its whole part before, the average is handed on.
    "chunks of NaN from then on": Kind((REFUSED, COMPLETED), proof="struck"),
    "duplicated frames": HEALED,
    "reordered frames": HEALED,
    "corrupt header": DROPPED,
    "truncated body": DROPPED,
    "stranger": UNSEEN,
    "leaves, and a newcomer": Kind((COMPLETED,)),
    "leaves and comes back": Kind((COMPLETED,)),
    "rendezvous killed": Kind(("PeerLost",), others="PeerLost", proof="ends"),
    "rendezvous frozen": Kind(("DeadlinePassed", "PeerLost"), others="DeadlinePassed", proof="ends"),
    "killed, all fail": Kind(("killed",), others="PeerLost", proof="ends"),
    "frozen, all fail": Kind(("frozen",), others="PeerLost", proof="ends"),
    "does not call, all fail": Kind((LEFT_OUT,), others="PeerLost", proof="ends"),
    "wrong size, all fail": Kind((REFUSED,), others="PeerLost", proof="ends"),
}
ALL_FAIL = ", all fail"
"""Of a fault in a group that ends when anybody is lost: then all name the one who is to blame."""

AVERAGED_AGAIN = ("leaves, and a newcomer", "leaves and comes back")


@dataclass(frozen=True)
class Scenario:
    """Who averages what, and what happens when. Everything follows from `fault` and `seed`."""

    fault: str
    seed: int
    members: int
    rounds: int
    elements: int
    wire: str
    way: Way
    """In a ring, or everyone sends to everyone: given, and not what would be faster."""
    victim: int
    at_round: int
    at_chunk: int
    """Which of the chunks that the victim sends in that round; from 0."""

    @property
    def what(self) -> str:
        """What happens, whatever the others do about it."""
        return self.fault.removesuffix(ALL_FAIL)

    @property
    def on_loss(self) -> Literal["continue", "fail"]:
        """What all members are told to do when one is lost."""
        return "fail" if self.fault.endswith(ALL_FAIL) else "continue"

    @property
    def names(self) -> tuple[str, ...]:
        """Those who are there at the start."""
        return tuple(f"m{index}" for index in range(self.members))

    @property
    def newcomer(self) -> str | None:
        """Who comes when the victim has left."""
        return f"m{self.members}" if self.fault == "leaves, and a newcomer" else None

    @property
    def awaited(self) -> str | None:
        """In whose presence the members go on until it takes part."""
        return f"m{self.victim}" if self.fault == "leaves and comes back" else self.newcomer

    @property
    def timeout_s(self) -> float:
        """Of each average."""
        return {"does not call": 2.0, "rendezvous frozen": 1.0}.get(self.what, 8.0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def scenario(fault: str, seed: int, *, wires: Sequence[str] = ("exact",)) -> Scenario:
    """The scenario of this fault and seed.

    As seeds go on, a kind has all pairs of a way and a wire in turn: in nine of its scenarios each is there.
    """
    turn = seed // len(KINDS) + list(KINDS).index(fault)
    way = WAYS[turn % len(WAYS)]
    wire = "exact" if fault == "other dtype" else wires[turn // len(WAYS) % len(wires)]
    chance = random.Random(f"{fault} {seed}")
    members = chance.randint(KINDS[fault].least_members, 5)
    rounds = chance.randint(1, 4)
    small = chance.random() < 0.2 and not fault.startswith("cut off")
    elements = chance.randint(1, 2000) if small else chance.randint(members * 2 * CHUNK_ELEMENTS, 200_000)
    victim, at_round = chance.randrange(members), chance.randint(1, rounds)
    whole = Scenario(fault, seed, members, rounds, elements, wire, way, victim, at_round, 0)
    return replace(whole, at_chunk=chance.randrange(chunks_sent(whole)))


def chunks_sent(plan: Scenario) -> int:
    """How many chunks each member sends in a round, at least."""
    n = plan.members
    if plan.way == "direct":
        return (n - 1) * -(-plan.elements // CHUNK_ELEMENTS)
    return 2 * (n - 1) * max(1, -(-(plan.elements // n) // CHUNK_ELEMENTS))


def cut_after_bytes(plan: Scenario) -> int:
    """Where a connection to the victim is cut: in the middle of what one round sends on it."""
    n = plan.members
    n_bytes = plan.elements * bytes_per_element(plan.wire)  # type: ignore[arg-type]
    # Of a direct exchange every other member sends all it has; in a ring it comes from one.
    one_round = (n - 1) * n_bytes if plan.way == "direct" else 2 * (n - 1) / n * n_bytes
    return int((plan.at_round - 1 + random.Random(plan.seed).uniform(0.1, 0.8)) * one_round)


def weight(name: str) -> float:
    """A power of two for each name."""
    return 2.0 ** int(name.removeprefix("m"))


def contribution(plan: Scenario, name: str, life: int, call: int) -> NDArray[np.float32]:
    """What `name` gives in its `call`-th call, from 1, since it joined for the `life`-th time, from 0."""
    seed = [plan.seed, plan.members, int(name.removeprefix("m")), life, call]
    return np.random.default_rng(seed).standard_normal(plan.elements, dtype=np.float32)


@dataclass(frozen=True)
class Done:
    """One average that a member got."""

    name: str
    life: int
    call: int
    round: int
    total: float
    vector: NDArray[np.float32]


def participants(plan: Scenario, total: float) -> set[str]:
    """Whose weights make up `total`."""
    return {f"m{index}" for index in range(plan.members + 1) if int(total) >> index & 1}


def faults_found(plan: Scenario, done: Sequence[Done], begun: Mapping[str, tuple[int, int]], ends: Ends) -> list[str]:
    """What is wrong with what came out; nothing when all is right. `begun`: name → life and call it began last."""
    kind = KINDS.get(plan.fault, HEALED)
    wrong = _wrong_ends(plan, kind, ends)
    rounds: dict[int, list[Done]] = {}
    for one in done:
        rounds.setdefault(one.round, []).append(one)
    for number, those in sorted(rounds.items()):
        first = those[0]
        if any(one.total != first.total or one.vector.tobytes() != first.vector.tobytes() for one in those):
            wrong.append(f"round {number}: not the same bytes at {[one.name for one in those]}")
        took_part = participants(plan, first.total)
        calls = {**begun, **{one.name: (one.life, one.call) for one in those}}
        parts = [(weight(name), contribution(plan, name, *calls[name])) for name in sorted(took_part)]
        mean = sum(n * part.astype(np.float64) for n, part in parts) / first.total
        error = np.linalg.norm(first.vector - mean) / max(np.linalg.norm(mean), 1e-30)
        if not error <= TOLERANCE[plan.wire]:
            wrong.append(f"round {number}: {error:.2g} of the norm away from the mean of {sorted(took_part)}")
        absent = set(plan.names) - took_part
        if number < plan.at_round and absent and plan.fault != "none":
            wrong.append(f"round {number}, before the fault, is without {sorted(absent)}")
        if kind.spared and absent:
            wrong.append(f"round {number} is without {sorted(absent)}")
        gone = {name for name in ends if ends[name] != COMPLETED or plan.fault in AVERAGED_AGAIN}
        if absent - gone:
            wrong.append(f"round {number} is without {sorted(absent - gone)}, who completed it")
    return wrong


def words_of(plan: Scenario, ends: Ends, epoch: int) -> str:
    """How the members ended, by their part in the scenario, and the last epoch in which anybody got an average."""
    by_end: dict[str, list[str]] = {}
    for name, end in ends.items():
        part = "newcomer" if name == plan.newcomer else "victim" if name == f"m{plan.victim}" else "others"
        by_end.setdefault(end, []).append(part)
    others = sum(name not in (plan.newcomer, f"m{plan.victim}") for name in ends)
    said = []
    for end, parts in sorted(by_end.items()):
        who = [part for part in ("victim", "newcomer") if part in parts]
        if count := parts.count("others"):
            who.append("all others" if count == others else f"{count} other{'s' if count > 1 else ''}")
        said.append(f"{', '.join(who)}: {end}")
    return f"{'; '.join(said)}; epoch {epoch or 'none'}"


def did_not_strike(plan: Scenario, told: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """That nothing shows that the fault struck; nothing when something does, or need not."""
    kind = KINDS.get(plan.fault)
    if kind is None or (plan.members == 2 and plan.what in ("wrong size", "other dtype")):
        return []
    lines = [line for several in told.values() for line in several]
    shown = {
        "epoch": last_epoch(told) > 1,
        "struck": any("struck" in line for line in lines),
        "dropped": any(line.get("dropped") for line in lines),
        "ends": True,
    }
    return [] if shown[kind.proof] else [f"nothing shows that the fault struck ({kind.proof})"]


def blamed_wrongly(plan: Scenario, texts: Mapping[str, str]) -> list[str]:
    """Who names another than the victim for the end of the group. `texts`: member → its error."""
    if plan.on_loss != "fail" or (plan.members == 2 and plan.what == "wrong size"):
        return []
    guilty = f"member 'm{plan.victim}' is lost"
    return [f"{name} blames another: {text}" for name, text in texts.items() if guilty not in text]


def last_epoch(told: Mapping[str, Sequence[Mapping[str, Any]]]) -> int:
    """The last epoch in which a member got an average; 0: nobody got any."""
    return max((line.get("epoch", 0) for lines in told.values() for line in lines), default=0)


def _wrong_ends(plan: Scenario, kind: Kind, ends: Ends) -> list[str]:
    victims = {f"m{plan.victim}"}
    if plan.fault == "two killed":
        victims.add(f"m{(plan.victim + 1) % plan.members}")
    others = {name for name in plan.names if name not in victims}
    allowed = {**dict.fromkeys(victims, kind.victim), **dict.fromkeys(others, (kind.others,))}
    if plan.what in ("wrong size", "other dtype") and plan.members == 2:
        allowed = dict.fromkeys(plan.names, (REFUSED,))  # of two nobody can say which is the odd one
    if plan.fault.startswith("rendezvous"):
        allowed = dict.fromkeys(plan.names, ("PeerLost", "DeadlinePassed"))
    if kind.one_of_two:
        allowed = dict.fromkeys(plan.names, (COMPLETED, LEFT_OUT))
        if sum(end != COMPLETED for end in ends.values()) != 1:
            return [f"one member should have been left out: {dict(ends)}"]
    return [f"{name} ended with {ends[name]!r}" for name in allowed if ends[name] not in allowed[name]]
