"""Ray says which of its nodes it drains, as it is asked by a run.

In a network namespace with nothing but loopback, since Ray listens at the machine's address.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ravnest.errors import RunFailed
from tests.support.commands import environment

pytestmark = pytest.mark.timeout(900)

ADDRESS, START_S, TOLD_S = "127.0.0.1:26380", 300, 60
LOOPBACK_ONLY = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
RAY = str(Path(sys.executable).with_name("ray"))
PATIENT = {"RAY_raylet_start_wait_time_s": str(START_S)}
"""Ray gives its own processes half a minute, which is little on a busy machine."""


class Waits:
    """Something that runs on a node: Ray ends one where nothing does as soon as it is drained."""

    def there(self) -> bool:
        return True


def in_the_namespace() -> list[list[str | None]]:
    """Start a node of Ray, and drain it; by name, the nodes that are drained before and after that."""
    from ravnest.driver.ray.session import RaySession

    head = [RAY, "start", "--head", "--block", "--port", ADDRESS.rpartition(":")[2], "--node-ip-address", "127.0.0.1"]
    head += ["--resources", json.dumps({"ravnest-desk": 1}), "--num-cpus", "1", "--include-dashboard", "false"]
    head += ["--disable-usage-stats", "--object-store-memory", "80000000"]
    with contextlib.ExitStack() as leaving:
        short = leaving.enter_context(
            tempfile.TemporaryDirectory(prefix="drain-", dir="/tmp", ignore_cleanup_errors=True)  # sockets lie in it
        )
        process = leaving.enter_context(subprocess.Popen([*head, "--temp-dir", short], stdout=sys.stderr))
        leaving.callback(process.terminate)
        ends_s, session = time.monotonic() + START_S, None
        while session is None:  # its node comes later than its head
            try:
                session = RaySession(ADDRESS)
            except RunFailed:
                if time.monotonic() > ends_s:
                    raise
                time.sleep(1.0)
        leaving.callback(session.close)
        actor = session.ray.remote(Waits).options(num_cpus=0).remote()
        assert session.ray.get(actor.there.remote(), timeout=START_S)
        before, (node,) = session.draining(), session.nodes()
        drain = [RAY, "drain-node", "--address", ADDRESS, "--node-id", node.node_id, "--reason-message", "taken back"]
        drain += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--deadline-remaining-seconds", str(START_S)]
        subprocess.run(drain, stdout=sys.stderr, timeout=START_S, check=True)
        ends_s = time.monotonic() + TOLD_S
        while not (after := session.draining()) and time.monotonic() < ends_s:
            time.sleep(0.2)
        return [[each.name for each in found if each.alive] for found in (before, after)]


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_ray_says_which_of_its_nodes_it_drains() -> None:
    done = subprocess.run(
        [*LOOPBACK_ONLY, sys.executable, "-m", "tests.integration.test_ray_drain"],
        cwd=Path(__file__).parents[2],
        env={**environment(), **PATIENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[], ["desk"]]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(in_the_namespace()) + "\n")
