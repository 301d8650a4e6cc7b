"""Experts that are hosted by others: a hash table finds them, a gate chooses some, who does not answer is dropped out.

In: experts.yaml, the address of a node of the table, and samples. Out: hosts that serve experts and train them, and
`RemoteMixtureOfExperts`, a layer that calls them.
"""

from ravnest.experts.client import ExpertsClient
from ravnest.experts.config import ExpertsConfig, experts_from, load_experts
from ravnest.experts.mixture import RemoteMixtureOfExperts
from ravnest.experts.open_host import opened_host, shared_token
from ravnest.experts.trainer import Trainer

__all__ = [
    "ExpertsClient",
    "ExpertsConfig",
    "RemoteMixtureOfExperts",
    "Trainer",
    "experts_from",
    "load_experts",
    "opened_host",
    "shared_token",
]
