"""The server's check of passwords: MLflow's users and rules, without a third of a second for each request.

MLflow compares a password with its hash at every request, several times. Here a password that was verified is
remembered for some minutes, as a digest under a key that only this process has. The digest covers the hash that is in
the database, which is read at every request: a changed password or a removed user counts at once, in all processes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from typing import TYPE_CHECKING

from cachetools import TTLCache
from flask import Response, g, request
from werkzeug.security import check_password_hash

from runcatalog.server import compat

if TYPE_CHECKING:
    from werkzeug.datastructures import Authorization

    from runcatalog.server.compat import User

SECONDS = 300.0  # after which a password is verified again
USERS = 10_000  # of which a password is remembered; beyond, the oldest is forgotten


class Verified:
    """Passwords that were verified, one a user.

    Args:
        seconds: How long one is remembered.
        users: Of how many.
    """

    def __init__(self, seconds: float = SECONDS, users: int = USERS) -> None:
        self._key = secrets.token_bytes(32)
        self._digests: TTLCache[str, bytes] = TTLCache(users, seconds)
        self._lock = threading.Lock()

    def __contains__(self, entry: tuple[str, str, str]) -> bool:
        """Return whether (name, hash of the password, password) was verified."""
        with self._lock:
            known = self._digests.get(entry[0], b"")
        return hmac.compare_digest(known, self._digest(entry))

    def add(self, entry: tuple[str, str, str]) -> None:
        """Remember (name, hash of the password, password)."""
        digest = self._digest(entry)
        with self._lock:
            self._digests[entry[0]] = digest

    def _digest(self, entry: tuple[str, str, str]) -> bytes:
        # Digests have a fixed length, so that no two entries give the same text.
        parts = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in entry)
        return hmac.digest(self._key, b"".join(parts), "sha256")


_verified = Verified()


def authorize() -> Authorization | Response:
    """Return the user's name and password if they are right and the request is allowed, else the answer.

    MLflow calls it for each request, some of them several times (`authorization_function` of its settings).
    """
    if "authorized" not in g:
        g.authorized = _check()
    return g.authorized


def _check() -> Authorization | Response:
    given = request.authorization
    if given is None or given.type != "basic" or not given.username or not given.password:
        return compat.not_authenticated()
    user = compat.find_user(given.username)
    if user is None or not _is_right(user, given.password):
        return compat.not_authenticated()
    rule = request.url_rule.rule if request.url_rule is not None else ""
    if rule.endswith(compat.CREATE_EXPERIMENT) and not user.is_admin:
        text = "Permission denied: an admin creates experiments (catalog server user add)"
        return Response(text, 403)
    if rule.endswith(compat.ADMIN_ONLY) and not user.is_admin:
        return Response("Permission denied: only the admin may do this", 403)
    return given


def _is_right(user: User, password: str) -> bool:
    entry = (user.username, user.password_hash, password)
    if entry in _verified:
        return True
    if not check_password_hash(user.password_hash, password):
        return False
    if compat.is_disabled(user.username, password, user):
        return False
    _verified.add(entry)
    return True
