"""The two settings to compare, from what was typed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import Loaded, Tuning
from ds4chat.engine.from_settings import changed
from ds4chat.settings.schema import TUNING
from ds4chat.settings.validate import SettingError
from ds4chat.tui.compare.comparison import Side
from ds4chat.tui.kit.charts import shown_value
from ds4chat.tui.panels.knobs import set_value, without_fixed

USAGE = (
    "/compare takes one or two settings: plain, now, a depth, the name of a preset, or values such as "
    "margin=0.8,depth=4. One is compared with plain decoding; without any, it is the current settings."
)
_BY_NAME = {name: option.key for option in TUNING for name in (option.key, option.short)} | {
    "depth": "mtp-draft"
}


def sides_of(
    argument: str, now: Tuning, presets: Mapping[str, Mapping[str, Any]], loaded: Loaded
) -> tuple[Side, Side]:
    """The two sides that were typed. Raises SettingError if they are not settings, or come to the same."""
    words = argument.split() or ["now"]
    if len(words) > 2:
        raise SettingError(USAGE)
    tunings = [_tuning(word, now, presets) for word in ["plain", *words][-2:]]
    a, b = (_effective(tuning, now, loaded) for tuning in tunings)
    if a == b:
        off = "" if loaded.drafter or loaded.server else f" MTP is off: {loaded.off_reason}."
        raise SettingError(
            f"Both settings come to the same here, so there is nothing to compare.{off} {USAGE}"
        )
    return Side(_label(a, b), tunings[0]), Side(_label(b, a), tunings[1])


def _tuning(word: str, now: Tuning, presets: Mapping[str, Mapping[str, Any]]) -> Tuning:
    if word == "now":
        return now
    if word == "plain":
        return replace(now, depth=0)
    if word in presets:
        return changed(now, presets[word])
    if word == "auto" or re.fullmatch(r"\d+", word):
        return set_value(now, "mtp-draft", word)
    tuning = now
    for part in word.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in _BY_NAME:
            raise SettingError(f"{part} is not a setting to compare. {USAGE}")
        tuning = set_value(tuning, _BY_NAME[name], value)
    return tuning


def _effective(tuning: Tuning, now: Tuning, loaded: Loaded) -> Tuning:
    """The tuning without what makes no difference to the loaded models. Raises SettingError for a setting
    that the server fixes."""
    if loaded.server is not None:
        _, refused = without_fixed(now, tuning, loaded.server)
        if refused:
            raise SettingError(f"That cannot be compared here: {refused}")
        return tuning
    most = loaded.drafter.max_depth if loaded.drafter else 0
    if tuning.depth == "auto" and most:
        return tuning
    if isinstance(tuning.depth, int) and (depth := min(tuning.depth, most)):
        return replace(tuning, depth=depth)
    # Without a draft nothing is judged, so what judges drafts makes no difference.
    default = Tuning()
    return replace(
        tuning, depth=0, margin=default.margin, gate=default.gate, strict=default.strict, probe=default.probe
    )


def _label(side: Tuning, other: Tuning) -> str:
    """The depth, and whatever else differs from the other side."""
    parts = ["plain" if side.depth == 0 else f"depth {side.depth}"]
    for option in TUNING:
        value = getattr(side, option.tuning)
        matters = option.tuning != "depth" and (side.depth or option.group == "sampling")
        if matters and value != getattr(other, option.tuning):
            parts.append(f"{option.short} {shown_value(value, option)}")
    return ", ".join(parts)
