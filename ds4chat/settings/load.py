"""Settings from four sources: built-in defaults < config file < environment < command line.

DS4_MTP_MIN_MARGIN overrides the command line, as in ds4 (Option.env_wins). All problems of a file are
reported at once; each bad key keeps its default, and a file with problems is never overwritten unasked.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ds4chat.files import NotRegularError, read_regular
from ds4chat.settings import paths
from ds4chat.settings.schema import BY_KEY, OPTIONS, Option, Settings
from ds4chat.settings.toml_lines import Lines
from ds4chat.settings.validate import (
    SettingError,
    check,
    nearest,
    preset_value,
    spelled,
    unknown_key,
)

SettingSource = Literal["default", "model", "file", "environment", "command line"]
"""Where a setting's value comes from; "model": the file of the model that is loaded asks for it."""

DEMO_DEPTH = 2
"""The demo's draft depth if none is set: deep enough that there is something to see."""

MAX_BYTES = 1 << 20
"""A settings file has a few kilobytes; a file larger than this is not read."""

_RANK: dict[SettingSource, int] = {"default": 0, "model": 1, "file": 2, "environment": 3, "command line": 4}
_AT_LINE = re.compile(r"\s*\(at line (\d+), column (\d+)\)")
_AT_END = re.compile(r"\s*\(at end of document\)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a settings file."""

    message: str
    """A sentence."""
    line: int | None = None
    """From 1; None where the problem has no line."""
    file: str = ""
    """Path of the file."""

    def __str__(self) -> str:
        place = [self.file] if self.file else []
        if self.line is not None:
            place.append(f"line {self.line}")
        return f"{', '.join(place)}: {self.message}" if place else self.message


@dataclass(frozen=True, slots=True)
class FileRead:
    """The contents of a settings file."""

    values: dict[str, Any] = field(default_factory=dict)
    """The checked values by key; a bad key is missing."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    """Tables that ds4chat does not know: kept when the file is saved."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The merged settings, their sources, and what to report about them."""

    settings: Settings
    warnings: list[str]
    problems: list[Problem]
    """Mistakes in the config file."""
    config_path: Path
    """The file that was read, or the one that a save creates if it does not exist."""
    sources: dict[str, SettingSource] = field(default_factory=dict)
    """Where each key's value comes from."""


def load(
    cli: Mapping[str, object],
    config_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """The settings merged from the file, the environment and ``cli`` (values by key, text or typed).

    ``config_path`` None is the user's own file, which need not exist; a named file must. Raises SettingError
    for a bad value in ``cli``; everything else that is wrong comes back as warnings and problems.
    """
    environ = os.environ if environ is None else environ
    path = config_path if config_path is not None else paths.config_file(environ)
    read = read_file(path, must_exist=config_path is not None)
    settings, sources, warnings = merge(read.values, environ, cli)
    return LoadedSettings(settings, read.warnings + warnings, read.problems, path, sources)


def merge(
    file: Mapping[str, Any], environ: Mapping[str, str], cli: Mapping[str, object]
) -> tuple[Settings, dict[str, SettingSource], list[str]]:
    """The settings from a file's checked values, the environment and the command line; the source of each
    key's value; and warnings for the user. Raises SettingError for a bad value in ``cli``."""
    warnings: list[str] = []
    values: dict[str, Any] = {}
    sources: dict[str, SettingSource] = {}
    for option in OPTIONS:
        chosen = _choose(option, file, environ, cli, warnings)
        if chosen is not None:
            values[option.key], sources[option.key] = chosen
    _settle_demo(values, sources)
    _settle_server(values, sources)
    settings = replace(Settings(), **{BY_KEY[key].attribute: value for key, value in values.items()})
    for option in OPTIONS:
        sources.setdefault(option.key, "default")
    return settings, sources, warnings


def read_file(path: Path, *, must_exist: bool = False) -> FileRead:
    """The contents of the settings file at ``path``, with all its problems. Raises nothing."""
    read = _read(path, must_exist)
    problems = [replace(problem, file=str(path)) for problem in read.problems]
    return replace(read, problems=problems, warnings=[f"{path}: {text}" for text in read.warnings])


def _read(path: Path, must_exist: bool) -> FileRead:
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        if not must_exist:
            return FileRead()
        return _unreadable(
            f"The file does not exist: name another, or write it with ds4chat config write --config {path}."
        )
    except (NotRegularError, IsADirectoryError):
        return _unreadable("This is not a file: name a TOML file.")
    except OSError as error:
        if error.errno == errno.EFBIG:
            return _unreadable("The file is larger than 1 MiB, so it is not a settings file.")
        return _unreadable(f"The file cannot be read: {error.strerror}. Change that, or name another.")
    return parse(data, path.parent)


def _unreadable(message: str, line: int | None = None) -> FileRead:
    return FileRead(problems=[Problem(message, line)])


def parse(data: bytes, folder: Path) -> FileRead:
    """The contents of a settings file of these bytes. Relative paths in it are resolved against
    ``folder``."""
    try:
        # Editors on Windows put a byte-order mark before the text.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable(
            f"This is not UTF-8 text: byte {error.start} (0x{data[error.start]:02x}) is out of place. "
            "Save it as UTF-8.",
            data[: error.start].count(b"\n") + 1,
        )
    try:
        document = tomllib.loads(text)
    except RecursionError:
        return _unreadable("The values are nested too deeply to be settings.")
    except ValueError as error:
        return _syntax_error(str(error), text)
    return _check_document(document, text, folder)


def _check_document(document: dict[str, Any], text: str, folder: Path) -> FileRead:
    read = FileRead()
    lines = Lines(text)

    def wrong(message: str, *path: str) -> None:
        read.problems.append(Problem(message, lines.of(path)))

    for key, raw in document.items():
        option = BY_KEY.get(key)
        if option is None and isinstance(raw, dict):
            read.extra[key] = raw
            close = nearest(key, ("keys", "presets", "servers"))
            hint = f"; did you mean [{close}]?" if close else "."
            read.warnings.append(f"The table [{key}] is unknown and is ignored{hint}")
        elif option is None:
            wrong(unknown_key(key, BY_KEY), key)
        elif option.kind == "table" and isinstance(raw, dict):
            entries = read.values.setdefault(key, {})
            for name, entry in raw.items():
                _check_entry(key, name, entry, entries, wrong)
        else:
            try:
                value = check(option, raw, "file")
            except SettingError as error:
                wrong(str(error), key)
                continue
            # Relative to the file, wherever ds4chat is started.
            read.values[key] = str(folder.absolute() / value) if option.names_file(value) else value
    for server in read.values.get("servers", {}).values():
        for key in ("key-file", "ca-file"):
            if server.get(key):
                server[key] = str(folder.absolute() / os.path.expanduser(server[key]))
    if read.values.get("demo") and read.values.get("model"):
        del read.values["demo"]
        wrong("demo = true and model are both set: leave one of them out. The model is used.", "demo")
    read.problems.sort(key=lambda problem: problem.line or 0)
    return read


def _check_entry(table: str, name: str, entry: object, entries: dict[str, Any], wrong: Any) -> None:
    """Check one line of [keys], or one table of [presets]; valid entries go into ``entries``."""
    if table == "presets" and isinstance(entry, dict):
        entries[name] = {}
        for key, raw in entry.items():
            try:
                entries[name][key] = preset_value(name, key, raw)
            except SettingError as error:
                wrong(str(error), table, name, key)
        return
    try:
        entries.update(check(BY_KEY[table], {name: entry}, "file"))
    except SettingError as error:
        wrong(str(error), table, name)


def _syntax_error(message: str, text: str) -> FileRead:
    what = _AT_END.sub("", _AT_LINE.sub("", message))
    hint = "text goes between quotes" if what == "Invalid value" else "fix it there"
    if place := _AT_LINE.search(message):
        return _unreadable(f"This is not TOML: {what} at column {place[2]}; {hint}.", int(place[1]))
    if _AT_END.search(message):
        return _unreadable(f"This is not TOML: {what} at its end; {hint}.", text.count("\n") + 1)
    return _unreadable(f"This is not TOML: {what}; {hint}.")


def _choose(
    option: Option,
    file: Mapping[str, Any],
    environ: Mapping[str, str],
    cli: Mapping[str, object],
    warnings: list[str],
) -> tuple[Any, SettingSource] | None:
    """The option's value and its source; None if no source sets it."""
    from_env = _from_env(option, environ, warnings)
    if option.key in cli:
        typed = check(option, cli[option.key])
        if not (option.env_wins and from_env is not None):
            return typed, "command line"
        if typed != from_env[0]:
            warnings.append(
                f"{spelled(option, environ[option.env], 'env')} wins over {spelled(option, typed, 'cli')}, "
                "as in ds4: unset the variable to use the option."
            )
    if from_env is not None:
        return from_env
    if option.key in file:
        return file[option.key], "file"
    return None


def _from_env(
    option: Option, environ: Mapping[str, str], warnings: list[str]
) -> tuple[Any, SettingSource] | None:
    raw = environ.get(option.env, "").strip() if option.env else ""
    if not raw:
        return None
    if option.kind == "bool":
        if raw.lower() in ("off", "false", "no"):
            warnings.append(f"{option.env}={raw} switches it on: to switch it off, set it to 0 or unset it.")
        return raw != "0", "environment"
    try:
        return check(option, raw, "env"), "environment"
    except SettingError as error:
        warnings.append(f"{error} It is ignored.")
        return None


def _settle_server(values: dict[str, Any], sources: dict[str, SettingSource]) -> None:
    """A local model from a stronger source overrides the server of a weaker one."""
    if values.get("server") and any(
        values.get(key) and _RANK[sources[key]] > _RANK[sources["server"]] for key in ("model", "demo")
    ):
        del values["server"], sources["server"]


def _settle_demo(values: dict[str, Any], sources: dict[str, SettingSource]) -> None:
    """``demo`` and ``model`` both name the model: the stronger source wins. The demo comes with its own
    support model, unless the same source or a stronger one names another, and with a depth if none is set.
    """
    if not values.get("demo"):
        return
    demo = _RANK[sources["demo"]]

    def weaker(key: str) -> bool:
        return _RANK[sources.get(key, "default")] < demo

    if values.get("model") and not weaker("model"):
        del values["demo"], sources["demo"]
        return
    for key in ("model", "mtp"):
        if weaker(key):
            values.pop(key, None)
            sources.pop(key, None)
    values.setdefault("mtp-draft", DEMO_DEPTH)
