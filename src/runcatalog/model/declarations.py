"""Operations that a project's Guild file declares: includes, `extends`, `$include` and `params` as Guild resolves them.

Guild itself is not asked: importing it and its flags from the scripts takes longer than all else that a command of the
catalog does. `tests/runcatalog/model/test_declarations.py` compares with Guild.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runcatalog.model.errors import CatalogError

GUILD_FILE = "guild.yml"
_INHERITED = ("flags", "operation-defaults", "operations", "params", "description")
_PARAM = re.compile(r"({{.*?}})")
_REFERENCE = re.compile(r"([^:#]*):([^#]+)(?:#(.+))?|([^:#]+)(?:#(.+))?")
# What an operation is made of: a file with one of these among its keys' values is a mapping of operations.
_TYPES = ("model", "config", "package", "include")


@dataclass(frozen=True)
class Declared:
    """An operation as declared, with what it inherits.

    Attributes:
        name: As typed after `guild run`.
        body: Its attributes.
        file: The file that declares its model.
    """

    name: str
    body: dict[str, Any]
    file: Path


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        CatalogError: It cannot be read.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise CatalogError(f"{path}: {where}{problem}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def operations(path: Path) -> list[Declared]:
    """Return the operations of a Guild file and of all that it includes, in the files' order.

    Raises:
        CatalogError: A file cannot be read, is no Guild file, or names something that is not there.
    """
    items = list(_items(path, ()))
    found = []
    for item, file in items:
        if "model" not in item:
            continue
        model, body = str(item["model"] or ""), _extended(item, file, items, ())
        defaults = body.get("operation-defaults")
        for name, operation in _with_includes(body, "operations", file, items, ()).items():
            declared = {"main": operation} if isinstance(operation, str) else operation
            if not isinstance(declared, dict):
                raise CatalogError(
                    f"{file}: operation {name}: a mapping or the name of a script is expected"
                )
            if isinstance(defaults, dict):
                declared = {**defaults, **declared}
            if "$include" in (declared.get("flags") or {}):
                declared = {**declared, "flags": _with_includes(declared, "flags", file, items, ())}
            found.append(Declared(f"{model}:{name}" if model else str(name), declared, file))
    return found


def included(path: Path) -> list[Path]:
    """Return a Guild file and all that it includes, in their order; what cannot be read is left out."""
    found = [path]
    try:
        for document in _documents(path):
            for each in _list(document.get("include"), path, "include"):
                found += included(_included(path, each)) if len(found) < 1000 else []
    except (CatalogError, RecursionError):
        pass
    return list(dict.fromkeys(found))


def _documents(path: Path) -> list[dict[str, Any]]:
    """The top-level items of a Guild file."""
    content = load_yaml(path)
    if content is None:
        return []
    if isinstance(content, dict):  # the short form: a mapping of operations, without a model
        return [{"model": "", "operations": content}]
    if not isinstance(content, list):
        raise CatalogError(f"{path}: a list of models or a mapping of operations is expected")
    for document in content:
        if not isinstance(document, dict):
            raise CatalogError(f"{path}: {str(document)[:40]!r} is neither model nor config")
        if "operations" in document and not any(name in document for name in _TYPES):
            document["model"] = ""
    return content


def _items(path: Path, seen: tuple[Path, ...]) -> Iterator[tuple[dict[str, Any], Path]]:
    """The models and configs of a file and those that it includes, each with its file."""
    path = path.resolve()
    if path in seen:
        raise CatalogError(f"{path}: include: it includes itself")
    for document in _documents(path):
        if "include" in document:
            for each in _list(document["include"], path, "include"):
                yield from _items(_included(path, each), (*seen, path))
        else:
            yield document, path


def _included(path: Path, name: str) -> Path:
    """The file that an `include:` names: a path beside the including file, or a package with a Guild file."""
    local = path.parent / name
    if local.is_file():
        return local
    for package in (name, f"gpkg.{name}"):
        for folder in sys.path:
            found = Path(folder, *package.split("."), GUILD_FILE)
            if found.is_file():
                return found
    raise CatalogError(f"{path}: include: there is no {name}")


def _extended(
    item: Mapping[str, Any],
    file: Path,
    items: list[tuple[dict[str, Any], Path]],
    seen: tuple[str, ...],
) -> dict[str, Any]:
    """A model with what it inherits, its parameters filled in where it is the one that was asked for."""
    made = copy.deepcopy(dict(item))
    for name in _list(item.get("extends"), file, "extends"):
        if name in seen:
            raise CatalogError(f"{file}: extends: {name} extends itself")
        parent = _named(name, items)
        if parent is None:
            if "/" in name:
                continue  # of a package, which declares no operation of this project
            raise CatalogError(f"{file}: extends: there is no model or config {name}")
        inherited = _extended(parent, file, items, (*seen, name))
        _merge(made, {key: inherited[key] for key in _INHERITED if key in inherited})
    if seen:
        return made
    params = made.get("params")
    return _filled(made, params) if isinstance(params, dict) and params else made


def _merge(child: dict[str, Any], parent: Mapping[str, Any]) -> None:
    """Adds to a mapping what only its parent has, on every level."""
    for name, value in parent.items():
        if name not in child:
            child[name] = copy.deepcopy(value)
        elif isinstance(child[name], dict) and isinstance(value, dict):
            _merge(child[name], value)


def _named(name: str, items: list[tuple[dict[str, Any], Path]]) -> dict[str, Any] | None:
    for item, _ in items:
        if name in (item.get("model"), item.get("config")):
            return item
    return None


def _with_includes(
    body: Mapping[str, Any],
    section: str,
    file: Path,
    items: list[tuple[dict[str, Any], Path]],
    seen: tuple[str, ...],
) -> dict[str, Any]:
    """A section of a model or operation with what its `$include` names: CONFIG, CONFIG#NAMES, MODEL:OPERATION."""
    content = body.get(section) or {}
    if not isinstance(content, dict):
        raise CatalogError(f"{file}: {section}: a mapping is expected")
    made: dict[str, Any] = {}
    for reference in _list(content.get("$include"), file, "$include"):
        if reference in seen:
            continue
        found = _referred(reference, section, items)
        if found is None:
            raise CatalogError(f"{file}: $include: there is no {reference}")
        _update(made, _with_includes({section: found}, section, file, items, (*seen, reference)))
    _update(made, {name: value for name, value in content.items() if name != "$include"})
    return made


def _referred(
    reference: str, section: str, items: list[tuple[dict[str, Any], Path]]
) -> dict[str, Any] | None:
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        return None
    owner, operation, some, alone, alone_some = match.groups()
    found = _named(alone if operation is None else owner, items)
    if found is not None and operation is not None:
        found = (found.get("operations") or {}).get(operation)
    if not isinstance(found, dict):
        return None
    content = found.get(section) or {}
    names = some or alone_some
    if names:
        wanted = names.split(",")
        content = {name: value for name, value in content.items() if name in wanted}
    return content


def _update(made: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(made.get(name), dict):
            made[name] = {**made[name], **value}
        else:
            made[name] = value


def _filled(value: Any, params: Mapping[str, Any]) -> Any:
    """A value with `{{ NAME }}` replaced by the parameters."""
    if isinstance(value, dict):
        return {name: _filled(each, params) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, params) for each in value]
    if not isinstance(value, str) or "{{" not in value:
        return value
    for _ in range(10):  # a parameter may name another one
        parts = [part for part in _PARAM.split(value) if part]
        told = [params.get(p[2:-2].strip(), p) if _PARAM.fullmatch(p) else p for p in parts]
        filled = told[0] if len(told) == 1 else "".join(map(str, told))
        if filled == value or not isinstance(filled, str):
            return filled
        value = filled
    return value


def _list(content: Any, file: Path, name: str) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [str(each) for each in content]
    raise CatalogError(f"{file}: {name}: a name or a list of names is expected")
