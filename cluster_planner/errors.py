"""The errors of the planner: the shared base, and one class for a fleet that cannot run a model.

RavnestError                 the base of every error that is raised on purpose
└── InvalidInput             a file, key or argument that the user can mend (exit code 2)
    └── NoFeasiblePlan       a valid fleet and a valid model that do not fit each other
"""

from ravnest_errors import InvalidInput, RavnestError

__all__ = ["InvalidInput", "NoFeasiblePlan", "RavnestError"]


class NoFeasiblePlan(InvalidInput):
    """The fleet cannot hold or run the model under the workload. The message says what is lacking."""
