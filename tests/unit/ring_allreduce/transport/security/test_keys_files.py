"""The files of an encrypted group: what is written reads back, and what is wrong is told with file and place."""

import os
import stat
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ring_allreduce import InvalidInput
from ring_allreduce.transport.security.keys import (
    KeyPair,
    Keys,
    is_key,
    read_allow_list,
    read_key_pair,
    read_keys,
    write_allow_list,
    write_key_pair,
)

A, B = KeyPair.make(), KeyPair.make()  # new in each process: no test may be named by them, for workers have to agree


def private(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)
    return path


def test_what_is_written_reads_back_and_is_private(tmp_path):
    old = os.umask(0)
    try:
        write_key_pair(tmp_path / "a.key", A)
        write_allow_list(tmp_path / "allowed.keys", {"a": A.public, "büro": B.public})
    finally:
        os.umask(old)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600, 0o600]
    keys = read_keys(tmp_path / "a.key", str(tmp_path / "allowed.keys"))
    assert keys == Keys(A, {"a": A.public, "büro": B.public})


def test_nothing_is_written_over(tmp_path):
    path = tmp_path / "a.key"
    write_key_pair(path, A)
    for write in (lambda: write_key_pair(path, B), lambda: write_allow_list(path, {"b": B.public})):
        with pytest.raises(InvalidInput, match=f"^{path}: there is a file already"):
            write()
    assert read_key_pair(path) == A


def test_a_wrong_list_is_not_written(tmp_path):
    with pytest.raises(InvalidInput, match=r"^a: a key is 64"):
        write_allow_list(tmp_path / "allowed.keys", {"a": "x"})
    assert not (tmp_path / "allowed.keys").exists()


def test_where_nothing_can_be_written_or_read_is_told(tmp_path):
    missing = tmp_path / "none" / "a.key"
    with pytest.raises(InvalidInput, match=f"^{missing}: cannot be written"):
        write_key_pair(missing, A)
    for read in (read_key_pair, read_allow_list):
        with pytest.raises(InvalidInput, match=f"^{missing}: cannot be read"):
            read(missing)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o700 | 0o010])
def test_a_secret_that_others_may_read_is_refused(tmp_path, mode):
    path = tmp_path / "a.key"
    write_key_pair(path, A)
    path.chmod(mode)
    with pytest.raises(InvalidInput, match=rf"^{path}: others may read it \(mode {mode:04o}\)"):
        read_key_pair(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "public: expected a line `public: KEY`"),
        (f"public: {A.public}\n", "secret: expected a line `secret: KEY`"),
        (f"public: {A.public}\nsecret: {A.secret[:-1]}\n", "secret: a key is 64 hexadecimal digits in lower case"),
        (f"public: {B.public}\nsecret: {A.secret}\n", "public: this is not the public key that belongs"),
        (f"public: {A.public}\npublic: {A.public}\n", "line 2: expected one line `public: KEY` and one `secret"),
        (f"# of a\n\npublic: {A.public}\nsekret: {A.secret}\n", "line 4: expected one line"),
        (f"public {A.public}\n", "line 1: expected one line"),
        (b"\xff\xfe", "expected text in UTF-8"),
        ("#" * (1 << 20) + "\n", "expected at most 1048576 bytes"),
    ],
    ids=count(),
)
def test_a_wrong_key_file_is_told_with_its_place_and_without_its_secret(tmp_path, text, expected):
    path = private(tmp_path / "a.key", text)
    with pytest.raises(InvalidInput) as caught:
        read_key_pair(path)
    assert str(caught.value).startswith(f"{path}: {expected}")
    assert A.secret[:16] not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# nobody\n", "expected at least one line"),
        ("a\n", "line 1: expected a member's name and its public key"),
        (f"a {A.public} b\n", "line 1: expected a member's name"),
        (f"a {A.public}\n\n#\na {B.public}\n", "a: the member stands there twice"),
        (f"a {A.public}\nb {A.public}\n", "b: its key is that of 'a', too"),
        (f"a {A.public.upper()}\n", "a: a key is 64 hexadecimal digits"),
    ],
    ids=count(),
)
def test_a_wrong_allow_list_is_told_with_its_place(tmp_path, text, expected):
    path = private(tmp_path / "allowed.keys", text)
    with pytest.raises(InvalidInput) as caught:
        read_allow_list(path)
    assert str(caught.value).startswith(f"{path}: {expected}")


@pytest.fixture(scope="module")
def any_file(tmp_path_factory):
    return tmp_path_factory.mktemp("any") / "file"


@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_read_or_refused_with_the_file(any_file, data):
    private(any_file, data)
    with pytest.raises(InvalidInput, match=str(any_file)):
        read_key_pair(any_file)
    try:
        allowed = read_allow_list(any_file)
    except InvalidInput as error:
        allowed, refused = {}, str(error)
        assert refused.startswith(f"{any_file}: ")
    assert all(is_key(public) for public in allowed.values())
