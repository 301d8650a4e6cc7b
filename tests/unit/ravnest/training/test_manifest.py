import json

import pytest

from ravnest.training.manifest import ClusterPosition, FileEntry, Manifest, decode, encode

MANIFEST = Manifest(
    round=3,
    samples=4096,
    plan_fingerprint="f",
    clusters={"c0": ClusterPosition(64, 8), "c1": ClusterPosition(32, 4)},
    files={"segment-000.safetensors": FileEntry(10, "ab")},
)


def test_round_trip():
    assert decode(encode(MANIFEST)) == MANIFEST
    assert MANIFEST.versions == {"c0": 8, "c1": 4}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format_version": 2}, "has format version 2; this ravnest reads 1"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"round": "three"}, "Expected `int`"),
        ({"clusters": {"c0": {"version": 1}}}, "missing required field `next_micro_batch`"),
    ],
)
def test_anything_else_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        decode(json.dumps({**json.loads(encode(MANIFEST)), **change}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", encode(MANIFEST)[:-5]])
def test_no_manifest_at_all(data):
    with pytest.raises(ValueError, match="is not a manifest"):
        decode(data)
