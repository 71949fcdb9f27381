"""The users of a group's server, and the experiments that each may write to."""

from __future__ import annotations

import base64
import json
import re
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runcatalog.record.errors import UserError
from runcatalog.server.folder import (
    ADMIN,
    Folder,
    credentials_text,
    read_credentials,
    write_secret,
)
from runcatalog.server.processes import address, running

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_WRITE = "EDIT"  # MLflow's permission to create and change runs in an experiment
_PAGE = 1000


class Server:
    """A running server, asked as its admin.

    Args:
        folder: The server's folder.

    Raises:
        UserError: It does not run.
    """

    def __init__(self, folder: Folder) -> None:
        if running(folder) is None:
            raise UserError(f"no server of {folder.path} runs: catalog server start")
        self._address = address(folder.settings())
        name, password = read_credentials(folder.credentials)
        encoded = base64.b64encode(f"{name}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {encoded}", "Content-Type": "application/json"}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def add(self, name: str, experiments: Sequence[str], path: Path | None) -> list[str]:
        """Add a user, or let one write to more experiments; experiments that are missing are created.

        Args:
            name: The user.
            experiments: Names of experiments.
            path: Where a new user's credentials are written; by default NAME.credentials in this folder.

        Returns:
            Lines that say what was done.

        Raises:
            UserError: The name is not valid, or the file exists.
        """
        _check_name(name)
        lines = []
        if name not in self._users():
            lines.append(self._with_new_password(name, path, "users/create", "POST"))
        elif path is not None:
            raise UserError(
                f"{name} exists; `catalog server user password {name}` gives a new password"
            )
        for experiment in experiments:
            grant = {"username": name, "resource_type": "experiment", "permission": _WRITE}
            grant["resource_id"] = self._experiment(experiment)
            self._ask("POST", "users/permissions/grant", grant, version="3.0")
            lines.append(f"{name} may write to {experiment}")
        return lines or [f"{name} exists"]

    def password(self, name: str, path: Path | None) -> str:
        """Give a user a new password, in a new file of credentials; the old one ends at once."""
        self._check_known(name)
        return self._with_new_password(name, path, "users/update-password", "PATCH")

    def remove(self, name: str) -> str:
        """Remove a user; the user's runs stay."""
        self._check_known(name)
        self._ask("DELETE", "users/delete", {"username": name})
        return f"{name} is removed"

    def users(self) -> list[tuple[str, list[str]]]:
        """Return the users with the names of the experiments that each may write to."""
        names = self._experiments()
        found = []
        for name, user in sorted(self._users().items()):
            rules = [rule for role in user["roles"] for rule in role["permissions"]]
            ids = [
                rule["resource_pattern"]
                for rule in rules
                if (rule["resource_type"], rule["permission"]) == ("experiment", _WRITE)
            ]
            found.append((name, sorted(names.get(each, each) for each in ids)))
        return found

    def _check_known(self, name: str) -> None:
        _check_name(name)
        if name not in (known := self._users()):
            raise UserError(
                f"no user {name!r}: {', '.join(sorted(known.keys() - {ADMIN})) or 'none'}"
            )

    def _with_new_password(self, name: str, path: Path | None, route: str, method: str) -> str:
        path = path or Path(f"{name}.credentials")
        password = secrets.token_urlsafe(24)
        write_secret(path, credentials_text(name, password))
        try:
            self._ask(method, route, {"username": name, "password": password})
        except BaseException:
            path.unlink()
            raise
        return f"{path}: name and password of {name}, for ~/.mlflow/credentials there (chmod 600)"

    def _users(self) -> dict[str, Any]:
        return {user["username"]: user for user in self._ask("GET", "users/list")["users"]}

    def _experiments(self) -> dict[str, str]:
        names: dict[str, str] = {}
        token = ""
        while True:
            asked = {"max_results": _PAGE, "page_token": token, "view_type": "ALL"}
            answer = self._ask("POST", "experiments/search", asked)
            names |= {each["experiment_id"]: each["name"] for each in answer.get("experiments", [])}
            token = answer.get("next_page_token", "")
            if not token:
                return names

    def _experiment(self, name: str) -> str:
        for key, known in self._experiments().items():
            if known == name:
                return key
        created = self._ask("POST", "experiments/create", {"name": name})
        return str(created["experiment_id"])

    def _ask(
        self, method: str, route: str, content: dict[str, Any] | None = None, version: str = "2.0"
    ) -> Any:
        request = urllib.request.Request(
            f"{self._address}/api/{version}/mlflow/{route}", method=method, headers=self._headers,
            data=None if content is None else json.dumps(content).encode(),
        )  # fmt: skip
        try:
            with self._opener.open(request, timeout=60) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")
            try:
                text = str(json.loads(text)["message"])
            except (ValueError, KeyError, TypeError):
                text = text.strip() or error.reason
            raise UserError(f"the server refuses {route}: {' '.join(text.split())[:300]}") from None
        except OSError as error:
            raise UserError(f"{self._address} does not answer ({error})") from None


def _check_name(name: str) -> None:
    if name == ADMIN:
        raise UserError(f"{ADMIN} is the server's own user")
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name of a user: up to 64 letters, digits, _, - and .")
