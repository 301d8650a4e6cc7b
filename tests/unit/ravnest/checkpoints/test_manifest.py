import json

import pytest

from ravnest.checkpoints.manifest import FileEntry, Manifest, decode_manifest, encode_manifest

MANIFEST = Manifest(
    round=3,
    samples=4096,
    versions={"c0": 8, "c1": 4},
    made_with={"model": "f"},
    files={"segment-000.safetensors": FileEntry(10, "ab")},
)


def test_round_trip():
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format_version": 2}, "has format version 2; this ravnest reads 1"),
        ({"extra": 1}, "unknown field `extra`"),
        ({"round": "three"}, "Expected `int`"),
        ({"versions": {"c0": "eight"}}, "Expected `int`"),
        ({"samples": -1}, "Expected `int` >= 0"),
        ({"versions": {"c0": -1}}, "Expected `int` >= 0"),
        ({"files": {"../../secret": {"bytes": 1, "sha256": ""}}}, "matching regex"),
    ],
)
def test_anything_else_is_refused(change, said):
    with pytest.raises(ValueError, match=said):
        decode_manifest(json.dumps({**json.loads(encode_manifest(MANIFEST)), **change}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", encode_manifest(MANIFEST)[:-5]])
def test_no_manifest_at_all(data):
    with pytest.raises(ValueError, match="is not a manifest"):
        decode_manifest(data)
