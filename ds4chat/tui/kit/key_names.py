"""Keys as people write them."""

from __future__ import annotations

import re
import unicodedata
from contextlib import suppress

_NAMES = {
    "escape": "Esc",
    "enter": "Enter",
    "space": "Space",
    "tab": "Tab",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "delete": "Del",
    "backspace": "Backspace",
    "minus": "-",
    "plus": "+",
    "slash": "/",
}


def spelled(key: str) -> str:
    """A key of a binding as people write it: ``ctrl+end`` is Ctrl+End, ``N`` is Shift+N, ``n`` is n."""
    *modifiers, last = key.split("+") if key != "+" else ["+"]
    if len(last) == 1 and last.isupper() and not modifiers:
        modifiers = ["shift"]
    with suppress(KeyError):  # Textual names punctuation after Unicode: question_mark
        last = unicodedata.lookup(last.replace("_", " ")) if "_" in last else last
    capital = re.fullmatch(r"f\d+", last) or (modifiers and re.fullmatch("[a-z]", last))
    last = _NAMES.get(last, last.upper() if capital else last)
    return "+".join([*(m.capitalize() for m in modifiers), last])
