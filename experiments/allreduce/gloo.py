"""The baseline: torch.distributed's gloo all_reduce. The only file that may touch torch.distributed, since a baseline
cannot be measured without running it; no tensor or object of ours passes through it.
"""

import os
from datetime import timedelta

import torch.distributed as distributed
from torch import Tensor

DEADLINE_S = 120.0


def join(rank: int, size: int, port: int) -> None:
    """Become member `rank` of `size` on this machine's loopback; `port`: a free one, where rank 0 listens."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=DEADLINE_S),
    )


def all_reduce(vector: Tensor) -> None:
    """Replace `vector` by the sum over all members."""
    distributed.all_reduce(vector)


def leave() -> None:
    """Close the connections."""
    distributed.destroy_process_group()
