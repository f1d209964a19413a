"""One value against its option: the same check for command line, TOML, environment and screens."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterable
from typing import Any, Literal

from ds4chat.settings.schema import BY_KEY, PRESET_KEYS, SERVER_KEYS, Option
from ds4chat.text import one_line, shortened

Source = Literal["cli", "file", "env", "chat"]
"""Where a value was written; sentences about it use that spelling."""

LARGEST_INT = 2**31 - 1
"""llama.cpp counts tokens, layers and threads in signed 32-bit integers."""

_ELSEWHERE = {
    "on": "without one, --mtp alone drafts with the block inside the target",
    "off": "none loads no drafter",
    "lookup": "lookup is an option of its own, --lookup",
}
"""Further words that /mtp takes in the chat, and the option to use instead."""
_ON = ("on", "true", "yes", "1")
_OFF = ("off", "false", "no", "0")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_BEYOND = 10**20
"""Used for numbers with more digits than Python converts: out of every range."""


class SettingError(ValueError):
    """A value that its option does not accept; the text is a sentence that says what it accepts."""

    def __init__(self, sentence: str) -> None:
        """The sentence may quote names from a file; all of it becomes one line."""
        super().__init__(one_line(sentence))


def check(option: Option, raw: object, source: Source = "cli") -> Any:
    """The value that ``raw`` means for ``option``, of the type of the Settings field. Raises SettingError.

    ``raw`` is text as typed by a user, or a value as TOML gives it.
    """
    said = spelled(option, raw, source)
    match option.kind:
        case "bool":
            return _bool(raw, said)
        case "int":
            return _ranged(_int(raw, said, option), option, said)
        case "float":
            return _ranged(_float(raw, said, option), option, said)
        case "depth":
            return _depth(raw, option, said)
        case "choice":
            return _choice(raw, option.choices, said)
        case "names":
            return _names(raw, option.choices, said)
        case "path":
            return _path(_text(raw, said), option, said)
        case "str":
            return _text(raw, said)
        case "table":
            return {"presets": _presets, "servers": _servers}.get(option.key, _keys)(raw)


def spelled(option: Option, raw: object, source: Source) -> str:
    """How a sentence names this option and its value: ``--mtp-draft 17``, ``mtp-draft = 17``,
    ``DS4_MTP_MIN_MARGIN=17``, or in the chat ``mtp-draft 17``."""
    if source == "env":
        return f"{option.env}={shortened(raw)}"
    if source == "file":
        text = json.dumps(raw, ensure_ascii=False) if isinstance(raw, (str, bool)) else str(raw)
        return f"{option.key} = {shortened(text)}"
    name = option.key if source == "chat" else f"--{option.key}"
    return f"{name} {shortened(str(raw))}" if str(raw).strip() else f'{name} ""'


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name most like ``word``, or "" if none is similar."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else ""


def range_of(option: Option) -> str:
    """The values that the option accepts, as the end of a sentence: ``1 to 16, or auto``."""
    if option.kind in ("choice", "names"):
        return listed(option.choices)
    if option.low is None and option.high is None:
        return {"bool": "on or off", "int": "a whole number", "float": "a number"}.get(option.kind, "text")
    low = "" if option.low is None else _number(option.low)
    bounds = f"{low} or more" if option.high is None else f"{low} to {_number(option.high)}"
    return f"{bounds}, or auto" if option.kind == "depth" else bounds


def _bool(raw: object, said: str) -> bool:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower() if isinstance(raw, (str, int)) else ""
    if word in _ON:
        return True
    if word in _OFF:
        return False
    raise SettingError(f"{said} is neither on nor off: it takes on or off.")


def _int(raw: object, said: str, option: Option) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and _WHOLE.fullmatch(raw.strip()):
        try:
            return int(raw)
        except ValueError:
            return -_BEYOND if "-" in raw else _BEYOND
    raise SettingError(f"{said} is not a whole number: it takes {range_of(option)}.")


def _float(raw: object, said: str, option: Option) -> float:
    try:
        if isinstance(raw, bool) or not isinstance(raw, (int, float, str)) or "_" in str(raw):
            raise ValueError
        value = float(raw)
    except ValueError:
        raise SettingError(f"{said} is not a number: it takes {range_of(option)}.") from None
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise SettingError(f"{said} is not a finite number: it takes {range_of(option)}.")
    return value + 0.0  # no -0.0


def _ranged(value: Any, option: Option, said: str) -> Any:
    high = option.high
    if high is None and option.kind == "int":
        high = LARGEST_INT
    if (option.low is None or value >= option.low) and (high is None or value <= high):
        return value
    if option.key == "mtp-margin":
        raise SettingError(
            f"{said} is out of range: it is a probability ratio from 0 to 1; "
            "ds4's logit gap is --mtp-gate here."
        )
    takes = range_of(option) if option.high is not None else f"{range_of(option)}, {LARGEST_INT} at most"
    raise SettingError(f"{said} is out of range: it takes {takes}.")


def _depth(raw: object, option: Option, said: str) -> int | str:
    if isinstance(raw, str) and raw.strip().lower() == "auto":
        return "auto"
    try:
        value = _int(raw, said, option)
    except SettingError:
        raise SettingError(
            f"{said} is neither a whole number nor auto: it takes {range_of(option)}."
        ) from None
    return int(_ranged(value, option, said))


def _choice(raw: object, choices: tuple[str, ...], said: str) -> str:
    word = raw.strip().lower() if isinstance(raw, str) else ""
    # TOML has booleans of its own, and flash-attn = true can only mean one thing.
    if isinstance(raw, bool):
        word = "on" if raw else "off"
    if word in choices:
        return word
    close = nearest(word, choices)
    hint = f" Did you mean {close}?" if close else ""
    raise SettingError(f"{said} is not known: it takes {listed(choices)}.{hint}")


def _names(raw: object, choices: tuple[str, ...], said: str) -> str:
    words = raw if isinstance(raw, list) else _text(raw, said).replace(",", " ").split()
    for word in words:
        if word not in choices:
            close = nearest(str(word), choices)
            hint = f" Did you mean {close}?" if close else ""
            raise SettingError(
                f"{said} names {shortened(word)}, which is not known: it takes {listed(choices)}.{hint}"
            )
    return " ".join(dict.fromkeys(words))


def _text(raw: object, said: str) -> str:
    if not isinstance(raw, str):
        raise SettingError(f'{said} is not text: write it between quotes, as in "...".')
    if "\0" in raw:
        raise SettingError(f"{said} holds a NUL character, which no text here may.")
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise SettingError(f"{said} is not valid UTF-8: convert the text, or rename the file.") from None
    return raw


def _path(text: str, option: Option, said: str) -> str:
    if option.optional_value and text == "none":
        return ""
    if option.optional_value and text in _ELSEWHERE:
        raise SettingError(f"{said} names no file: {_ELSEWHERE[text]}. A file of that name is ./{text}.")
    if not text or text == option.optional_value:
        return text
    return os.path.expanduser(text)


def _keys(raw: object) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise SettingError(
            'keys is not a table: write [keys] and below it lines such as "chat.view" = "ctrl+n".'
        )
    for action, binding in raw.items():
        if not isinstance(binding, str):
            raise SettingError(
                f"keys.{action} is not text: write the keys between quotes, with commas between, and the "
                'action between quotes too, as in "chat.view" = "f3, ctrl+n".'
            )
    return dict(raw)


def _presets(raw: object) -> dict[str, dict[str, Any]]:
    if not isinstance(raw, dict):
        raise SettingError("presets is not a table: write [presets.NAME] and options below it.")
    for name, table in raw.items():
        if not isinstance(table, dict):
            raise SettingError(f"presets.{name} is not a table: write [presets.{name}] and options below it.")
    return {
        name: {key: preset_value(name, key, value) for key, value in table.items()}
        for name, table in raw.items()
    }


def _servers(raw: object) -> dict[str, dict[str, str]]:
    if not isinstance(raw, dict):
        raise SettingError("servers is not a table: write [servers.NAME] and url below it.")
    return {name: _server(name, table) for name, table in raw.items()}


def _server(name: str, raw: object) -> dict[str, str]:
    """One named server's checked entries; a plain string is its url. Raises SettingError for the first
    mistake."""
    entries = {"url": raw} if isinstance(raw, str) else raw
    if not isinstance(entries, dict) or "url" not in entries:
        raise SettingError(
            f'servers.{name} has no url: write [servers.{name}] and url = "http://..." below it.'
        )
    for key, value in entries.items():
        if key not in SERVER_KEYS:
            close = nearest(key, SERVER_KEYS)
            hint = f"did you mean {close}?" if close else f"it takes {listed(SERVER_KEYS)}."
            raise SettingError(f"servers.{name}: {shortened(key)} is not a known key; {hint}")
        if not isinstance(value, str) or not value.isprintable():
            raise SettingError(f"servers.{name}: {key} is not text: write it between quotes, on one line.")
    return dict(entries)


def preset_value(name: str, key: str, raw: object) -> Any:
    """The checked value of one option of a preset. Raises SettingError."""
    if key not in PRESET_KEYS:
        raise SettingError(f"presets.{name}: {unknown_key(key, PRESET_KEYS)}")
    try:
        return check(BY_KEY[key], raw, "file")
    except SettingError as error:
        raise SettingError(f"presets.{name}: {error}") from None


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The sentence for an unknown key, with the most similar known one."""
    if key in BY_KEY:
        return f"{key} is not an option of speculation or sampling, and a preset holds only those."
    close = nearest(key, known)
    hint = f"did you mean {close}?" if close else "ds4chat config defaults lists them."
    return f"{shortened(key)} is not a known key; {hint}"


def listed(words: tuple[str, ...]) -> str:
    """The words as the end of a sentence: ``md, json or jsonl``."""
    return ", ".join(words[:-1]) + f" or {words[-1]}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)
