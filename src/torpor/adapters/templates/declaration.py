"""PURE but for reading: a template's declaration (TOML) as a spec, with errors that name the key and its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from torpor.adapters.templates.spec import FileSpec, ReadyCheck, TemplateSpec, base_env
from torpor.domain.errors import InvalidArgument, NotFound
from torpor.domain.session import CPUS_MIN, MEMORY_BYTES_MIN, Limits

T = TypeVar("T")

_DECLARATION_BYTES_MAX = 1 << 20
_SIZE = re.compile(r"([0-9]+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_KEYS = frozenset(
    {"name", "base", "packages", "python", "wheels", "files", "commands", "env", "user", "workdir", "warmup"}
    | {"ready", "limits"}
)
_HEADER = re.compile(r"\s*\[\[?\s*([A-Za-z0-9_.-]+)\s*\]\]?")
_ASSIGNMENT = re.compile(r"\s*([A-Za-z0-9_-]+|\"[^\"]*\")\s*=")


def read_declaration(path: Path) -> TemplateSpec:
    """The spec in the file. Raises: NotFound; InvalidArgument, ``details`` with field and, if known, line."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(
            f"cannot read {str(path)!r}: there is no such file; name a file that declares a template, or a built-in "
            "template",
            field="file",
        ) from None
    except OSError as error:
        raise InvalidArgument(f"cannot read {str(path)!r}: {error.strerror}", field="file") from error
    if len(data) > _DECLARATION_BYTES_MAX:
        raise InvalidArgument(f"cannot read {path}: a declaration has at most 1 MiB", field="file")
    try:
        return parse_declaration(data.decode(), folder=path.resolve().parent)
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"cannot read {path}: not UTF-8 at byte {error.start}", field="file") from error


def parse_declaration(text: str, *, folder: Path) -> TemplateSpec:
    """``folder``: what relative paths in it are relative to."""
    try:
        declared = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"cannot parse the declaration: {error}", field="file") from error
    try:
        return _spec(declared, folder)
    except InvalidArgument as error:
        field = str(error.details.get("field", ""))
        line = line_of(text, field)
        if line is None:
            raise
        raise InvalidArgument(f"{error.message} (key {field}, line {line})", **error.details, line=line) from error


def line_of(text: str, field: str) -> int | None:
    """The line, from 1, of a key as ``files.mode`` or ``files[1].mode``; of its table if it is not there itself."""
    match = re.fullmatch(r"([A-Za-z0-9_-]+)(?:\[(\d+)\])?(?:\.(.+))?", field)
    if match is None:
        return None
    top, index, inner = match[1], int(match[2] or 0), match[3]
    table, seen, found = "", -1, None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = header[1]
            seen += table == top
            if table == top and seen == index:
                found = number
            continue
        assignment = _ASSIGNMENT.match(line)
        key = assignment[1].strip('"') if assignment else ""
        if (not table and key == top) or (inner and table == top and seen == index and key == inner):
            return number
    return found


def _spec(declared: Mapping[str, Any], folder: Path) -> TemplateSpec:
    _refuse_unknown(declared, _KEYS, "")
    if "name" not in declared:
        raise InvalidArgument('cannot build a template without a name: add name = "..."', field="name")
    wheels = _text(declared, "wheels", "")
    env = declared.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        bad = next((name for name, value in env.items() if not isinstance(value, str)), "") if env else ""
        raise InvalidArgument("cannot set variables: give each as a string", field=f"env.{bad}" if bad else "env")
    return TemplateSpec(
        name=_text(declared, "name", ""),
        base=_base(_text(declared, "base", "base"), folder),
        packages=_texts(declared, "packages"),
        python=_texts(declared, "python"),
        wheels=(folder / wheels).resolve() if wheels else None,
        files=tuple(_file(entry, index, folder) for index, entry in enumerate(_tables(declared, "files"))),
        commands=_commands(declared),
        env=MappingProxyType({**base_env(), **env}),
        user=_text(declared, "user", "root"),
        workdir=_text(declared, "workdir", ""),
        warmup=_warmup(declared),
        ready=_ready(declared),
        limits=_limits(declared),
    )


def _base(base: str, folder: Path) -> str:
    kind, colon, rest = base.partition(":")
    return f"{kind}:{(folder / rest).resolve()}" if colon and kind == "oci" else base


def _file(entry: Mapping[str, Any], index: int, folder: Path) -> FileSpec:
    where = f"files[{index}]"
    _refuse_unknown(entry, {"path", "content", "source", "mode", "owner"}, where)
    mode = _text(entry, "mode", "0644", where)
    if not re.fullmatch(r"[0-7]{3,4}", mode):
        raise InvalidArgument(f'cannot use mode {mode!r}: write it in octal, as "0644"', field=f"{where}.mode")
    source = _text(entry, "source", "", where)
    try:
        return FileSpec(
            path=_text(entry, "path", "", where),
            content=_text(entry, "content", "", where) if "content" in entry else None,
            source=(folder / source).resolve() if source else None,
            mode=int(mode, 8),
            owner=_text(entry, "owner", "0:0", where),
        )
    except InvalidArgument as error:
        inner = str(error.details.get("field", "")).rpartition(".")[2]
        raise InvalidArgument(error.message, field=f"{where}.{inner}") from error


def _commands(declared: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    commands = declared.get("commands", [])
    if not isinstance(commands, list):
        raise InvalidArgument("cannot run commands: give a list", field="commands")
    return tuple(_command(command, "commands") for command in commands)


def _command(command: object, field: str) -> tuple[str, ...]:
    if isinstance(command, str) and command.strip():
        return ("/bin/sh", "-c", command)
    if isinstance(command, list) and command and all(isinstance(word, str) for word in command):
        return tuple(command)
    raise InvalidArgument(f"cannot run {command!r}: give a line for the shell, or a list of words", field=field)


def _warmup(declared: Mapping[str, Any]) -> str:
    source = _text(declared, "warmup", "")
    try:
        compile(source, "warmup", "exec")
    except SyntaxError as error:
        raise InvalidArgument(
            f"cannot warm up: line {error.lineno} of the code: {error.msg}", field="warmup"
        ) from error
    return source if not source or source.endswith("\n") else f"{source}\n"


def _ready(declared: Mapping[str, Any]) -> ReadyCheck | None:
    if "ready" not in declared:
        return None
    table = _table(declared, "ready")
    _refuse_unknown(table, {"command", "code", "timeout_s"}, "ready")
    command = _command(table["command"], "ready.command") if "command" in table else ()
    return ReadyCheck(command, _text(table, "code", "", "ready"), _number(table, "timeout_s", 60.0, "ready"))


def _limits(declared: Mapping[str, Any]) -> Limits:
    table = _table(declared, "limits") if "limits" in declared else {}
    _refuse_unknown(table, {"cpus", "memory", "disk", "pids"}, "limits")
    plain = Limits()
    limits = Limits(
        cpus=_number(table, "cpus", plain.cpus, "limits"),
        memory_bytes=_size(table, "memory", plain.memory_bytes),
        disk_bytes=_size(table, "disk", plain.disk_bytes),
        pids_max=int(_number(table, "pids", plain.pids_max, "limits")),
    )
    lowest: tuple[tuple[str, float, float], ...] = (
        ("cpus", limits.cpus, CPUS_MIN),
        ("memory", limits.memory_bytes, MEMORY_BYTES_MIN),
        ("disk", limits.disk_bytes, 1 << 20),
        ("pids", limits.pids_max, 16),
    )
    for name, value, least in lowest:
        if value < least:
            raise InvalidArgument(f"cannot limit {name} to {value:g}: give {least:g} or more", field=f"limits.{name}")
    return limits


def _size(table: Mapping[str, Any], key: str, default: int) -> int:
    value = table.get(key, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InvalidArgument(
            f'cannot limit {key} to {value!r}: give bytes, or a string as "512M" or "2G"', field=f"limits.{key}"
        )
    return int(match[1]) * _UNITS[match[2]]


def _refuse_unknown(table: Mapping[str, Any], known: frozenset[str] | set[str], where: str) -> None:
    for key in table:
        if key not in known:
            field = f"{where}.{key}" if where else key
            raise InvalidArgument(f"cannot use the key {field}: known are {', '.join(sorted(known))}", field=field)


def _typed(value: Any, kind: type[T], field: str, named: str) -> T:  # noqa: ANN401 - any TOML value
    if not isinstance(value, kind):
        raise InvalidArgument(f"cannot use {field} = {value!r}: give {named}", field=field)
    return value


def _text(table: Mapping[str, Any], key: str, default: str, where: str = "") -> str:
    return _typed(table.get(key, default), str, f"{where}.{key}" if where else key, "a string")


def _texts(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = _typed(table.get(key, []), list, key, "a list of strings")
    return tuple(_typed(value, str, key, "a list of strings") for value in values)


def _table(declared: Mapping[str, Any], key: str) -> dict[str, Any]:
    return _typed(declared[key], dict, key, f"a table [{key}]")


def _tables(declared: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    tables = _typed(declared.get(key, []), list, key, f"tables [[{key}]]")
    return [_typed(table, dict, key, f"tables [[{key}]]") for table in tables]


def _number(table: Mapping[str, Any], key: str, default: float, where: str) -> float:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"cannot use {where}.{key} = {value!r}: give a number", field=f"{where}.{key}")
    return float(value)
