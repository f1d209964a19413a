"""Settings as a documented TOML file, in which a change touches only its own lines."""

from __future__ import annotations

import os
import textwrap
import tomllib
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
import tomlkit

from ds4chat.errors import UserFacingError
from ds4chat.files import write_whole
from ds4chat.settings.load import read_file
from ds4chat.settings.paths import OWNER_ONLY
from ds4chat.settings.schema import BY_KEY, GROUPS, OPTIONS, Option, Settings
from ds4chat.settings.toml_lines import statements
from ds4chat.settings.validate import SettingError, check, range_of

WIDTH = 100

_HEAD = """\
Settings of ds4chat. Each one has the same name here, on the command line and in the chat.

A line that begins with "# name = value" shows a default: remove the "# " and change the value.
Built-in defaults < this file < environment variables < command line; DS4_MTP_MIN_MARGIN overrides all.
Relative paths are relative to the folder of this file. Saving in the chat changes only the lines of the
settings that were changed there; everything else stays, your own comments included."""

_EXAMPLES = {
    "keys": '[keys]\n"chat.view" = "f3, ctrl+n"',
    "servers": '[servers.box]\nurl = "http://box:8080"\nkey-file = "box.key"',
    "presets": '[presets.careful]\nmtp-draft = 2\nmtp-margin = 1.0\n\n[presets.fast]\nmtp-draft = "auto"\n'
    "mtp-margin = 0.5",
}


class SaveError(UserFacingError):
    """The settings were not saved, and the file is as it was."""


def document() -> str:
    """The TOML file of the defaults: every key as a comment, with its help, range and default."""
    parts = [_commented(_HEAD)]
    for group, title in GROUPS.items():
        parts.append(f"# {'-' * 4} {title}")
        parts += [_entry(o) for o in OPTIONS if o.group == group and o.kind != "table"]
    # TOML puts every key after a header into its table, so the tables come last.
    for option in OPTIONS:
        if option.kind == "table":
            parts.append(f"{_wrapped(option.help)}\n{_commented(_EXAMPLES[option.key])}")
    return "\n\n".join(parts) + "\n"


def save(settings: Settings, path: Path, *, force: bool = False) -> None:
    """Write ``settings`` to ``path`` atomically.

    Only what differs from the file, or from the document of the defaults if there is none, is changed:
    comments, order and unknown tables stay. A file with problems is refused, because a key that could not be
    read would be lost; ``force`` rewrites it with what could be read. Raises SaveError.
    """
    # A symbolic link, as dotfile managers make them, stays one: the file that it points to is replaced.
    target = Path(os.path.realpath(path))
    before = read_file(target)
    if before.problems and not force:
        count = len(before.problems)
        what = "a problem" if count == 1 else f"{count} problems"
        raise SaveError(
            f"The settings were not saved, because the file has {what}: {before.problems[0]} Fix the file, "
            "or write over it with s and then Shift+S in /settings, which keeps only what could be read."
        )
    _refuse_bad(settings)
    settings = _absolute(settings)
    try:
        if before.problems or not target.exists():
            text = edited(document(), settings, {})
            text += f"\n{tomli_w.dumps(before.extra)}" if before.extra else ""
        else:
            text = edited(target.read_text(encoding="utf-8-sig"), settings, before.values)
        target.parent.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        write_whole(target, [text.encode()], overwrite=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SaveError(
            f"The settings were not saved to {path}: {reason}. The file is as it was; make its folder "
            "writable, or choose another file with --config FILE."
        ) from None


def save_preset(name: str, values: Mapping[str, Any], path: Path) -> None:
    """Write one preset to ``path``; every other setting stays as the file has it. Raises SaveError."""
    before = read_file(Path(os.path.realpath(path))).values
    kept = {BY_KEY[key].attribute: value for key, value in before.items()}
    presets = {**before.get("presets", {}), name: dict(values)}
    save(replace(Settings(), **{**kept, "presets": presets}), path)


def edited(text: str, settings: Settings, before: Mapping[str, Any]) -> str:
    """The valid document ``text``, which holds the values ``before``, with those of ``settings``."""
    for option in OPTIONS:
        value = getattr(settings, option.attribute)
        if value == before.get(option.key, option.default):
            continue
        if option.kind == "table":
            document = tomlkit.parse(text)
            _edit_table(document, option.key, value)
            text = document.as_string()
        elif option.key in before and value == option.default:
            text = _commented_out(text, option)
        else:
            document = tomlkit.parse(text if option.key in before else _uncommented(text, option))
            document[option.key] = value
            text = document.as_string()
    return text


def _edit_table(document: tomlkit.TOMLDocument, key: str, values: Mapping[str, Any]) -> None:
    """Set these entries of a table; each may be a table itself."""
    table = document.setdefault(key, tomlkit.table())
    for name in [name for name in table if name not in values]:
        del table[name]
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(table.get(name), MutableMapping):
            for gone in [inner for inner in table[name] if inner not in value]:
                del table[name][gone]
            for inner, new in value.items():
                if table[name].get(inner) != new:
                    table[name][inner] = new
        elif table.get(name) != value:
            table[name] = value


def _commented_out(text: str, option: Option) -> str:
    """``text`` with the option's key commented out, at its default, in the same place."""
    lines = text.split("\n")
    found = next(s for s in statements(text) if s.path == (option.key,) and not s.header)
    # Indexing would give a bool without its comment.
    mine = tomlkit.parse(text).item(option.key).trivia.comment  # type: ignore[union-attr]
    entry = f"# {_line(option)}"
    lines[found.first - 1 : found.last] = [f"{entry}  {mine}" if mine else entry]
    return "\n".join(lines)


def _uncommented(text: str, option: Option) -> str:
    """``text`` with the first line that shows the option's default turned into a setting; unchanged if there
    is none, or if that line is inside a table or a value."""
    lines = text.split("\n")
    mark = f"# {option.key} = "
    at = next((i for i, line in enumerate(lines) if line.startswith(mark)), None)
    if at is None:
        return text
    changed = "\n".join([*lines[:at], lines[at][2:], *lines[at + 1 :]])
    try:
        return changed if option.key in tomllib.loads(changed) else text
    except tomllib.TOMLDecodeError:
        return text


def _refuse_bad(settings: Settings) -> None:
    """Refuse to write a file that the next start would complain about. Raises SaveError."""
    for option in OPTIONS:
        try:
            check(option, getattr(settings, option.attribute), "file")
        except SettingError as error:
            raise SaveError(f"The settings were not saved: {error}") from None


def _absolute(settings: Settings) -> Settings:
    """Relative paths made absolute: on the command line they are relative to the current folder, in the file
    to the file's folder."""
    changes = {
        option.attribute: os.path.abspath(value)
        for option in OPTIONS
        if option.kind == "path" and option.names_file(value := getattr(settings, option.attribute))
    }
    return replace(settings, **changes)


def _entry(option: Option) -> str:
    return f"{_wrapped(' '.join(_facts(option)))}\n# {_line(option)}"


def _line(option: Option) -> str:
    return tomli_w.dumps({option.key: option.default}).strip()


def _facts(option: Option) -> list[str]:
    """The help of an option with its range, default and variable, if they add something."""
    facts = [option.help]
    if option.kind not in ("str", "path", "bool", "names"):
        facts.append(f"Takes {f'{range_of(option)} {option.unit}'.strip()}.")
    facts.append(f"Default: {option.shown_default or 'none'}.")
    if option.env:
        facts.append(f"Variable: {option.env}.")
    return facts


def _wrapped(text: str) -> str:
    return _commented(textwrap.fill(text, WIDTH - 2, break_on_hyphens=False))


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
