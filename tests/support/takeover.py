"""What a driver has written down of a session: two clusters of two stages, after two rounds."""

from ravnest.driver.run_store import DriverState, SessionStart, StagePlace
from ravnest.stage.epoch_messages import StagePosition

PLACE = StagePlace("desk", "127.0.0.1", 5000, 5001, "here", 12, 1.5)
STATE = DriverState(
    term=0,
    plan="ab",
    data="ten samples",
    address=None,
    token="00" * 16,
    keys=None,
    timeline=False,
    threads={"desk": 2},
    shares={"c0": (0.0, 0.5), "c1": (0.5, 1.0)},
    start=SessionStart(120, {"c0": 5, "c1": 5}, 3),
    stages=dict.fromkeys(("c0.s0", "c0.s1", "c1.s0", "c1.s1"), PLACE),
    epoch=4,
    committed=2,
    opened=3,
    updates={"c0": 20, "c1": 18},
    averaged={"c0": 16, "c1": 15},
    begun={"c0": 5, "c1": 5},
    stopping=False,
    left=[],
    snapshots={3: {"c1": 18}},
    elapsed_s=60.0,
)


def position(version: int, *snapshots: tuple[int, int], **changes: int) -> StagePosition:
    """What a stage answers that has heard of the same."""
    said = {"opened": 3, "committed": 2, "epoch": 4, "evaluation": 1, **changes}
    return StagePosition(term=1, version=version, snapshots=snapshots, drains=False, **said)
