"""What a stage reports to the driver of the experts that it asks.

In: what its process has asked of others (ravnest/job/experts_table.py). Out: messages, one for each grid.
"""

from ravnest.job.experts_table import ExpertsTableConfig, grids_asked
from ravnest.stage.message_fields import MOST_NAMED, ByName, Numbers
from ring_allreduce.transport import Count, Message, Name, Seconds

EXPERTS_EVERY_S = 5.0
"""How often the driver is told, where the stage asks any."""


class ExpertsAsked(Message, frozen=True, kw_only=True, tag="experts"):
    """It says what the stage has asked of the experts of a grid since it began, and what their hosts say of themselves,
    each by the host's name. `batches` forwards and backwards of micro-batches have waited `waited_s` for answers."""

    grid: Name
    places: Count
    batches: Count
    waited_s: Seconds
    requests: Count
    dropped: Count
    experts: ByName
    most_experts: ByName
    updates: ByName
    samples_per_s: Numbers
    answer_s: Numbers


def experts_asked(table: ExpertsTableConfig | None) -> list[ExpertsAsked]:
    """What is to be told now."""
    return [
        ExpertsAsked(
            grid=asked.grid,
            places=asked.places,
            batches=asked.batches,
            waited_s=asked.waited_s,
            requests=asked.requests,
            dropped=asked.dropped,
            experts={name: host.experts for name, host in hosts.items()},
            most_experts={name: host.most_experts for name, host in hosts.items()},
            updates={name: host.updates for name, host in hosts.items()},
            samples_per_s={name: host.samples_per_s for name, host in hosts.items()},
            answer_s={name: host.answer_s for name, host in hosts.items()},
        )
        for asked in grids_asked(table)
        for hosts in (dict(list(asked.hosts.items())[:MOST_NAMED]),)
    ]
