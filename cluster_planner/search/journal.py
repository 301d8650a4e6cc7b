"""What a search did, step by step, for those who want to know why a plan is as it is. Decides how a step reads."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """`objective`: of the best plan worked out so far, 0 before there is one. `gained`: by this step."""

    phase: str
    words: str
    objective: float
    gained: float

    def __str__(self) -> str:
        best = f"; best so far {self.objective:.4g}" if self.objective > 0 else ""
        return f"{self.phase}: {self.words}{best}"
