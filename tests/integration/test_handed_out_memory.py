"""What the driver's process takes while it hands out a checkpoint: a bounded amount, whatever the checkpoint's size."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from ravnest.stage import messages as m
from ravnest.stage.process import receive_state
from ring_allreduce.transport import PeerAddress, ZmqEndpoint

pytestmark = pytest.mark.timeout(240)

TOKEN = b"0123456789abcdef"
TENSOR = 3_000_000
"""Numbers of a tensor: 12 MB."""
MOST_MIB = 72
"""16 MiB on their way to the stage, as much in memory that both share, a piece, and what the allocator keeps."""
DRIVER = """
import json, select, sys
from pathlib import Path
from types import SimpleNamespace

from ravnest.checkpoints.weight_files import StoredTensors, open_weights
from ravnest.driver.preparation import StageState, hand_out
from ravnest.stage import messages as m
from ring_allreduce.transport import Outbox, PeerAddress, ZmqEndpoint

def mib(key):
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) / 1024

path, token = Path(sys.argv[1]), sys.argv[2].encode()
driver = ZmqEndpoint(m.DRIVER, codec=m.codec(), token=token)
print(json.dumps([driver.address.host, driver.address.pipeline_port, driver.address.bulk_port]), flush=True)
driver.connect({"c0.s0": PeerAddress(*json.loads(input()))})
files = open_weights(path)
names = sorted(files.stored)
specs = [SimpleNamespace(name=name) for name in names]
setup = SimpleNamespace(name="c0.s0", program=SimpleNamespace(weight_specs=specs), made_names=frozenset())
state = StageState(StoredTensors(files, {name: name for name in names}), {}, 7)
outbox = Outbox(driver, 16 << 20, 128 << 20)
before = mib("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
hand_out(outbox, driver, [setup], {setup.name: state})
while not select.select([sys.stdin], [], [], 0.0)[0]:  # until the stage has all of it
    outbox.flush()
    for delivery in driver.poll(0.05):
        if isinstance(delivery.message, m.Alive):
            outbox.got(delivery.sender, delivery.message.finished)
print(mib("VmHWM") - before, flush=True)
driver.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's peak of a process is read")
@pytest.mark.parametrize("tensors", [6, 24])
def test_a_driver_that_resumes_holds_no_more_of_a_larger_checkpoint(tmp_path, tensors):
    path = tmp_path / "saved.safetensors"
    save_file({f"t{number:02d}": torch.full((TENSOR,), float(number)) for number in range(tensors)}, path)
    stage = ZmqEndpoint("c0.s0", codec=m.codec(), token=TOKEN)
    command = [sys.executable, "-c", DRIVER, str(path), TOKEN.decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        stage.connect({m.DRIVER: PeerAddress(*json.loads(driver.stdout.readline()))})
        own = stage.address
        driver.stdin.write(json.dumps([own.host, own.pipeline_port, own.bulk_port]) + "\n")
        driver.stdin.flush()
        begin, weights, _ = receive_state(stage)
        driver.stdin.write("\n")
        driver.stdin.flush()
        grown_mib = float(driver.stdout.readline())
    stage.close()
    assert (begin.version, len(weights)) == (7, tensors)
    assert all(torch.equal(weights[f"t{n:02d}"], torch.full((TENSOR,), float(n))) for n in range(tensors))
    assert grown_mib < MOST_MIB
