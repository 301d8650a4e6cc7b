"""What is judged of an attack, from phases that a test makes."""

from collections import Counter

from experiments.attack.under_attack import MIB, Phase, judged


def phases(attacked_rate: float, grown_mib: int) -> list[Phase]:
    """Two phases of each kind."""
    quiet = [Phase(False, 100.0, {1: 400 * MIB, 2: 300 * MIB}) for _ in range(2)]
    resident = {1: 400 * MIB, 2: (300 + grown_mib) * MIB}
    attacked = [Phase(True, attacked_rate, resident, Counter({"garbage": 700}), 500) for _ in range(2)]
    return [each for pair in zip(quiet, attacked, strict=True) for each in pair]


def held(found: list[Phase], lost: list[dict[str, object]]) -> dict[str, bool | None]:
    """The verdicts by claim."""
    return {claim.name: claim.held for claim in judged(found, lost, [1, 2], quick=False).claims}


def test_each_claim_is_judged_by_its_own_figure() -> None:
    assert held(phases(98.0, 10), []) == {"rate": True, "memory": True, "lost": True, "strangers": True}
    assert held(phases(90.0, 10), [])["rate"] is False
    assert held(phases(98.0, 40), [])["memory"] is False
    assert held(phases(98.0, 10), [{"kind": "lost"}])["lost"] is False
