"""What the server remembers of passwords."""

import pytest

pytest.importorskip("flask_wtf", reason="needs the extra [server]")

from runcatalog.server.authorization import Verified

ENTRY = ("ada", "scrypt:1$salt$hash", "password of ada")


def test_only_the_same_user_hash_and_password_are_known():
    verified = Verified()
    assert ENTRY not in verified
    verified.add(ENTRY)
    assert ENTRY in verified
    for position in range(3):
        other = list(ENTRY)
        other[position] += "x"
        assert tuple(other) not in verified
    assert ("ada", "scrypt:1$salt$hashp", "assword of ada") not in verified
    assert ("eve", *ENTRY[1:]) not in verified
    assert ENTRY not in Verified()


def test_memory_is_bounded_and_forgets():
    verified = Verified(users=10)
    entries = [(f"user{number}", "hash", "password") for number in range(30)]
    for entry in entries:
        verified.add(entry)
    assert sum(entry in verified for entry in entries) == 10
    assert entries[-1] in verified
    none = Verified(seconds=0)
    none.add(ENTRY)
    assert ENTRY not in none


def test_neither_password_nor_hash_is_in_memory():
    verified = Verified()
    verified.add(ENTRY)
    memory = repr(vars(verified)) + repr(dict(verified._digests))
    assert ENTRY[1] not in memory
    assert ENTRY[2] not in memory
    changed = (*ENTRY[:2], "new password of ada")
    verified.add(changed)
    assert ENTRY not in verified
    assert changed in verified
