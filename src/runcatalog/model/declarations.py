"""Operations that a project's Guild file declares, with includes, `extends`, `$include` and `params` as in Guild.

Guild itself is not used, since importing it and the flags of the scripts would take most of the time of a command.
`tests/runcatalog/model/test_declarations.py` compares both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from runcatalog.model.errors import CatalogError

GUILD_FILE = "guild.yml"
_MAX_BYTES = 4 << 20  # of a YAML file; the largest of this project has 30 kB
_INHERITED = ("flags", "operation-defaults", "operations", "params", "description")
_PARAM = re.compile(r"({{.*?}})")
_REFERENCE = re.compile(r"([^:#]*):([^#]+)(?:#(.+))?|([^:#]+)(?:#(.+))?")
# Keys of which a top-level item has one; an item with `operations` alone is a model without a name.
_TYPES = ("model", "config", "package", "include")


@dataclass(frozen=True)
class Declared:
    """An operation as declared, with inherited attributes.

    Attributes:
        name: Name as typed after `guild run`.
        body: Its attributes.
        file: The file that declares its model.
    """

    name: str
    body: dict[str, Any]
    file: Path


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file, which callers do not change.

    Raises:
        CatalogError: The file cannot be read, is not YAML, or exceeds the limits of `untrusted.load_yaml`.
    """
    import yaml

    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise CatalogError(f"{path}: larger than {_MAX_BYTES >> 20} MiB")
        return _parsed(raw.decode("utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise CatalogError(f"{path}: {where}{problem}") from None
    except (OSError, ValueError) as error:
        raise CatalogError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


@lru_cache(64)
def _parsed(text: str) -> Any:
    """Return the value of a YAML text; cached, since a command reads the files of a project several times."""
    from runcatalog.record import untrusted

    return untrusted.load_yaml(text)


def operations(path: Path) -> list[Declared]:
    """Return the operations of a Guild file and of its included files, in the order of the files.

    Raises:
        CatalogError: A file cannot be read, is not a Guild file, or refers to something that does not exist.
    """
    items = list(_items(path, ()))
    operations_ = []
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
            flags = declared.get("flags")
            if isinstance(flags, dict) and "$include" in flags:
                declared = {**declared, "flags": _with_includes(declared, "flags", file, items, ())}
            full_name = f"{model}:{name}" if model else str(name)
            operations_.append(Declared(full_name, declared, file))
    return operations_


def included(path: Path) -> list[Path]:
    """Return a Guild file and its included files, in order; files that cannot be read are left out."""
    files = [path]
    try:
        for document in _documents(path):
            for name in _list(document.get("include"), path, "include"):
                files += included(_included(path, name)) if len(files) < 1000 else []
    except (CatalogError, RecursionError):
        pass
    return list(dict.fromkeys(files))


def _documents(path: Path) -> list[dict[str, Any]]:
    """Return the top-level items of a Guild file."""
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


def _items(path: Path, including: tuple[Path, ...]) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield (model or config, its file) of a file and its included files.

    Args:
        path: The file.
        including: Files that lead to it by their includes.
    """
    path = path.resolve()
    if path in including:
        raise CatalogError(f"{path}: include: it includes itself")
    for document in _documents(path):
        if "include" in document:
            for name in _list(document["include"], path, "include"):
                yield from _items(_included(path, name), (*including, path))
        else:
            yield document, path


def _included(path: Path, name: str) -> Path:
    """Return the file of an `include:`: a path relative to the including file, or a package with a Guild file."""
    local = path.parent / name
    if local.is_file():
        return local
    for package in (name, f"gpkg.{name}"):
        for folder in sys.path:
            file = Path(folder, *package.split("."), GUILD_FILE)
            if file.is_file():
                return file
    raise CatalogError(f"{path}: include: no file or package {name}")


def _extended(
    item: Mapping[str, Any],
    file: Path,
    items: list[tuple[dict[str, Any], Path]],
    descendants: tuple[str, ...],
) -> dict[str, Any]:
    """Return a model or config with inherited attributes.

    Args:
        item: The model or config.
        file: Its file.
        items: All models and configs.
        descendants: Names of those that inherit from it; if there are none, parameters are replaced by their values.
    """
    extended = dict(item)
    for name in _list(item.get("extends"), file, "extends"):
        if name in descendants:
            raise CatalogError(f"{file}: extends: {name} extends itself")
        parent = _named(name, items)
        if parent is None:
            if "/" in name:
                continue  # from a package, which declares no operation of this project
            raise CatalogError(f"{file}: extends: no model or config {name}")
        inherited = _extended(parent, file, items, (*descendants, name))
        extended = _merged(extended, {k: inherited[k] for k in _INHERITED if k in inherited})
    if descendants:
        return extended
    params = extended.get("params")
    return _filled(extended, params) if isinstance(params, dict) and params else extended


def _merged(child: Mapping[str, Any], parent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with, on every level, the entries that only its parent has."""
    merged = dict(child)
    for name, value in parent.items():
        if name not in merged:
            merged[name] = value
        elif isinstance(merged[name], dict) and isinstance(value, dict):
            merged[name] = _merged(merged[name], value)
    return merged


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
    including: tuple[str, ...],
) -> dict[str, Any]:
    """Return a section of a model or operation with its `$include`: CONFIG, CONFIG#NAMES or MODEL:OPERATION."""
    content = body.get(section) or {}
    if not isinstance(content, dict):
        raise CatalogError(f"{file}: {section}: a mapping is expected")
    combined: dict[str, Any] = {}
    for reference in _list(content.get("$include"), file, "$include"):
        if reference in including:
            continue
        included_part = _referenced(reference, section, items)
        if included_part is None:
            raise CatalogError(f"{file}: $include: no {reference}")
        chain = (*including, reference)
        _update(combined, _with_includes({section: included_part}, section, file, items, chain))
    _update(combined, {name: value for name, value in content.items() if name != "$include"})
    return combined


def _referenced(
    reference: str, section: str, items: list[tuple[dict[str, Any], Path]]
) -> dict[str, Any] | None:
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        return None
    model, operation, operation_names, config, config_names = match.groups()
    item = _named(config if operation is None else model, items)
    if item is not None and operation is not None:
        item = (item.get("operations") or {}).get(operation)
    if not isinstance(item, dict):
        return None
    content = item.get(section) or {}
    names = operation_names or config_names
    if names:
        selected = names.split(",")
        content = {name: value for name, value in content.items() if name in selected}
    return content


def _update(target: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            target[name] = {**target[name], **value}
        else:
            target[name] = value


def _filled(value: Any, params: Mapping[str, Any]) -> Any:
    """Return a value with `{{ NAME }}` replaced by parameters."""
    if isinstance(value, dict):
        return {name: _filled(item, params) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, params) for item in value]
    if not isinstance(value, str) or "{{" not in value:
        return value
    for _ in range(10):  # the value of a parameter may contain another parameter
        parts = [part for part in _PARAM.split(value) if part]
        replaced = [params.get(p[2:-2].strip(), p) if _PARAM.fullmatch(p) else p for p in parts]
        filled = replaced[0] if len(replaced) == 1 else "".join(map(str, replaced))
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
        return [str(item) for item in content]
    raise CatalogError(f"{file}: {name}: a name or a list of names is expected")
