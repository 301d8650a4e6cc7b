"""The files that are fuzzed: what people write, what ravnest wrote earlier, and what others hand on.

Documents (YAML, and JSON that ravnest reads whole) are changed at places that the bytes choose; others are the bytes.
"""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save

import ravnest
from cluster_planner import Plan, predicted_again, save_plan
from ravnest.checkpoints.manifest import FileEntry, Manifest, decode_manifest, encode_manifest
from ravnest.checkpoints.run_folder import RunFolder
from ravnest.checkpoints.weight_files import headers, open_weights
from ravnest.collaboration.invitation import Invitation, read_invitation
from ravnest.collaboration.people import People, parsed_people
from ravnest.collaboration.signatures import read_keyring
from ravnest.dht import new_identity
from ravnest.dht.identity import read_identity
from ravnest.driver.instructions import BeginCheckpoint
from ravnest.driver.observe.metrics_file import read_metrics
from ravnest.driver.preparation import writer_opener
from ravnest.driver.resuming import ResumedRun, resumed_optimizer, resumed_weights
from ravnest.driver.run_store import load_state
from ravnest.driver.shut_out import read_shut_out
from ravnest.errors import InvalidInput
from ravnest.experts.config import load_experts
from ravnest.job.initial_weights import make_weights
from ravnest.pipeline import parse_trace
from ravnest.simulator.node_trace import read_trace
from ravnest.simulator.scenario import load_scenario
from ring_allreduce.transport.security.keys import KeyPair, read_allow_list, read_key_pair
from tests.fuzz.documents import EDITS, edited
from tests.fuzz.target import Target
from tests.support.local import JOB_FILE, parts_of_plan, setups_of, tiny_job
from tests.unit.ravnest.simulator.test_fleet import home_plan

EXAMPLES = Path(__file__).parents[2] / "examples"

_MEMORY = Path("/dev/shm")
_FOLDER = Path(tempfile.mkdtemp(prefix="ravnest-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
"""Files are read by their path: each target has a name of its own in one folder."""


def _removed(process: int) -> None:
    """Remove the folder with the process that has made it, and not with the children that fuzz."""
    if os.getpid() == process:
        shutil.rmtree(_FOLDER, ignore_errors=True)


atexit.register(_removed, os.getpid())


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = Path(_FOLDER, name)
    path.touch(0o600)

    def written(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return written


def _document(name: str, document: Any, read: Callable[[Path], object], slowness: int = 100) -> Target:
    write = _file(name, read)

    def take(data: bytes) -> object:
        return write(yaml.safe_dump(edited(document, data), allow_unicode=True).encode("utf-8", "surrogatepass"))

    return Target(take, (InvalidInput,), EDITS, slowness)


def _json(document: Any, data: bytes) -> bytes:
    return json.dumps(edited(document, data), default=str).encode()


def _texts(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _yaml(path: str) -> Any:
    return yaml.safe_load((EXAMPLES / path).read_text(encoding="utf-8"))


NODES: dict[str, Any] = {
    "nodes": [
        {"name": "a", "gflops": 24.0, "memory_gb": 8.0, "up_mbps": 40.0, "down_mbps": 200.0, "region": "fra",
         "host": "box", "device": "cuda:0", "address": "192.0.2.10", "mtbf_hours": 24.0, "hours": "22-6",
         "data": {"factory": "data:here", "args": {"path": "/srv"}}},
        {"name": "b", "hardware": "rtx 3060", "up_mbps": 40.0, "down_mbps": 200.0, "host": "box"},
        {"name": "c", "gflops": 2.0, "memory_gb": 1.0, "up_mbps": 4.0, "down_mbps": 20.0, "region": "iad"},
    ],
    "links": [{"between": ["a", "b"], "latency_ms": 3.1, "mbps": 93.0, "jitter_ms": 1.0}],
    "regions": [{"between": ["fra", "iad"], "latency_ms": 46.0, "mbps": 300.0}],
    "constraints": {
        "min_clusters": 1, "forbid": [["a", "c"]], "groups": {"g": ["a", "b"]}, "apart": [["g", "iad"]],
        "cap": [{"node": "a", "memory_gb": 4.0}, {"node": "c", "up_mbps": 1.0}],
        "pin": [{"node": "c", "cluster": "c0", "stage": 0}],
    },
}  # fmt: skip
"""Every key that a nodes.yaml may have."""

SCENARIO: dict[str, Any] = {
    "compute_jitter": 0.1,
    "stalls": [{"node": "school-laptop", "at_s": 5.0, "for_s": 2.0}],
    "stall_rates": [{"per_hour": 2.0, "for_s": 1.0, "nodes": ["old-macbook"]}],
    "bandwidth": [{"at_s": 1.0, "up": 0.5, "nodes": ["old-macbook"]}],
    "deaths": [{"node": "old-macbook", "at_s": 10.0, "back_after_s": 60.0}],
    "kills": [{"node": "old-macbook", "at_s": 10.0}],
    "leaves": [{"node": "old-macbook", "at_s": 10.0, "notice_s": 5.0}],
    "joins": [{"node": "old-macbook", "at_s": 10.0}],
    "trace": {"file": "recorded.csv", "speed": 2.0},
    "begins_at_hour": 3.0,
}


RECORDED = b"0,add,a\n10,add,b\n2000,remove,a\n"


def _plan() -> Any:
    path = Path(_FOLDER, "planned.yaml")
    save_plan(predicted_again(home_plan()), path)
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _checkpoint() -> Target:
    """The checkpoint of a run that somebody else has made: its manifest says what it likes. The bytes change that; the
    size and the hash of a file stay those of the file, or all would end there."""
    job = tiny_job()
    folder = RunFolder(Path(_FOLDER, "run"))

    @cache  # a model is captured for it, which takes seconds: not before it is tried
    def made() -> tuple[Mapping[str, Any], Plan, Path, Any]:
        setups, plan = setups_of(job, parts=(2, 1))
        manifest = _written(folder, plan, job, setups)
        return setups, plan, manifest, json.loads(manifest.read_bytes())

    def take(data: bytes) -> None:
        setups, plan, manifest, valid = made()
        manifest.write_bytes(_json(valid, data))
        resumed = ResumedRun.load(folder, plan, job)
        resumed_weights(setups, plan, job, resumed)
        for setup in setups.values():
            dict(resumed_optimizer(setups, setup, resumed))

    return Target(take, (InvalidInput,), EDITS, slowness=200)


def _written(folder: RunFolder, plan: Plan, job: Any, setups: Mapping[str, Any]) -> Path:
    writer = writer_opener(folder, lambda: plan, job, None)(BeginCheckpoint(3, 96, {"c0": 4, "c1": 7}, unmade={}))
    writer.add_segment(0, make_weights(job, JOB_FILE))
    for ring in range(1, len(plan.rings)):
        writer.add_segment(ring, {})
    for setup in setups.values():
        writer.add_optimizer(setup.cluster, setup.index, {("w", "step"): torch.tensor(1.0)})
    return writer.commit(parts_of_plan(plan)) / "manifest.json"


def _weights(folder: Path) -> Target:
    """A folder of weights: the head of its file, or its index, as the bytes change them."""
    folder.mkdir()
    whole = save({"a": torch.zeros(2), "b": torch.ones(2, 3, dtype=torch.float16)})
    length = int.from_bytes(whole[:8], "little")
    head, bodies = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    (folder / "one.safetensors").write_bytes(whole)
    index = {"metadata": {"total_size": 20}, "weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}

    def take(data: bytes) -> None:
        changed, at = _json(head, data), folder / "changed.safetensors"
        at.write_bytes(len(changed).to_bytes(8, "little") + changed + bodies)
        (folder / "model.safetensors.index.json").write_bytes(_json(index, data))
        for path in (at, folder):
            try:
                files = open_weights(path)
                for name in files.stored:
                    files.read(name)
                    files.in_pieces(name)
            except InvalidInput:
                continue

    return Target(take, (), EDITS, slowness=100)


def _state(document: Any) -> Target:
    write = _file("driver.json", load_state)
    return Target(lambda data: write(_json(document, data)), (InvalidInput,), EDITS, slowness=10)


STATE: dict[str, Any] = {
    "version": 2, "term": 0, "plan": "a" * 64, "data": "", "address": None, "token": "00" * 16, "keys": None,
    "timeline": False, "threads": {"a": 1}, "shares": {"c0": [0.0, 1.0]}, "start": {}, "stages": {}, "epoch": 0,
    "committed": 0, "opened": 0, "updates": {"c0": 1}, "averaged": {}, "begun": {}, "snapshots": {"1": {"c0": 1}},
    "stopping": False, "left": [], "elapsed_s": 1.0,
}  # fmt: skip


def _invitation() -> bytes:
    guest = KeyPair.make()
    return Invitation(("192.0.2.1:7800",), "a" * 64, guest.public, guest.secret, "ab" * 16, "cd" * 32).line().encode()


def _identity() -> bytes:
    path = Path(_FOLDER, "made.pem")
    new_identity().write(path)
    return path.read_bytes()


def _people() -> bytes:
    people = People()
    people.came("k", "ada").samples += 3
    return people.text().encode()


def file_targets() -> Mapping[str, Target]:
    """By name."""
    Path(_FOLDER, "recorded.csv").write_bytes(RECORDED)
    entry = FileEntry(bytes=8, sha256="0" * 64)
    manifest = Manifest(
        round=3, samples=100, versions={"c0": 5}, made_with={"seed": "0"}, files={"segment-000.safetensors": entry}
    )
    refused = (InvalidInput,)
    listed, where = Path("people.json"), {"speed": 2.0, "noticed_after_s": 1.0, "notice_s": 3.0}
    return {
        "manifest": Target(decode_manifest, (ValueError,), [encode_manifest(manifest)]),
        "checkpoint": _checkpoint(),
        "safetensors": Target(
            _file("w.safetensors", headers),
            refused,
            [b"\x40" + bytes(7) + b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(64) + bytes(8)],
            slowness=10,
        ),
        "weights": _weights(Path(_FOLDER, "weights")),
        "metrics": Target(
            _file("metrics.jsonl", read_metrics),
            refused,
            [b'{"kind": "phase", "time": 1.0, "name": "x"}\n'],
            slowness=10,
        ),
        "key_pair": Target(_file("a.key", read_key_pair), refused, [b"public: 00\nsecret: 00\n"], slowness=10),
        "allow_list": Target(_file("allowed.keys", read_allow_list), refused, [b"desk " + b"0" * 64 + b"\n"], 10),
        "identity": Target(_file("id.pem", read_identity), refused, [_identity()], slowness=20),
        "keyring": Target(_file("keyring", read_keyring), refused, [b"ab" * 32 + b"  # ada\n"], slowness=10),
        "people": Target(lambda data: parsed_people(data, listed), refused, [_people()]),
        "invitation": Target(_texts(read_invitation), refused, [_invitation()]),
        "driver_state": _state(STATE),
        "shut_out": Target(_file("shut-out.json", read_shut_out), refused, [b'{"desk": "it lied"}'], slowness=10),
        "instructions": Target(_texts(parse_trace), (ValueError,), [b"F0 B0 W0"]),
        "trace": Target(
            _file("trace.csv", lambda path: read_trace(path, **where)),
            refused,
            [RECORDED],
            slowness=10,
        ),
        "nodes": _document("nodes.yaml", NODES, ravnest.load_fleet),
        "job": _document("job.yaml", _yaml("home/job.yaml"), ravnest.load_job),
        "collaborative_job": _document("together.yaml", _yaml("collaboration/job.yaml"), ravnest.load_job),
        "experts": _document("experts.yaml", _yaml("experts/experts.yaml"), load_experts),
        "plan": _document("plan.yaml", _plan(), ravnest.load_plan, slowness=400),
        "scenario": _document("scenario.yaml", SCENARIO, load_scenario),
        "yaml": Target(_file("any.yaml", ravnest.load_fleet), refused, [b"nodes: [{name: a}]", b"&a [*a]"], 100),
    }
