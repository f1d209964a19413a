"""The sampling that a model's file asks for (general.sampling.*): used where nothing else sets it, not
saved."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ds4chat.settings.load import DEMO_DEPTH, SettingSource
from ds4chat.settings.schema import BY_KEY, TUNING, Settings
from ds4chat.settings.validate import SettingError, check

SAMPLING = tuple(option for option in TUNING if option.group == "sampling" and option.key != "seed")


def apply_model_sampling(
    settings: Settings, given: Settings, sources: Mapping[str, SettingSource], asked: Mapping[str, float]
) -> tuple[Settings, Settings, dict[str, SettingSource]]:
    """The settings, those that the sources gave, and the sources, all with what a model asks for, by key.

    Values set by a file, the environment or the command line are kept, as are those set in the chat, where
    ``settings`` and ``given`` differ. What only a former model asked for returns to its default. Strict mode
    is greedy and ignores the model's sampling.
    """
    origins = dict(sources)
    for option in SAMPLING:
        now = getattr(given, option.attribute)
        unset = sources.get(option.key, "default") in ("default", "model")
        if not unset or getattr(settings, option.attribute) != now:
            continue
        value: Any = option.default
        origins[option.key] = "default"
        if option.key in asked and not settings.mtp_strict:
            with suppress(SettingError):  # out of the range that the option has
                value = check(option, asked[option.key])
                origins[option.key] = "model"
        settings = replace(settings, **{option.attribute: value})
        given = replace(given, **{option.attribute: value})
    return settings, given, origins


def for_file(settings: Settings, given: Settings, sources: Mapping[str, str]) -> Settings:
    """The settings as they are saved: what the model asked for, and the demo's own depth, are at their
    defaults, so that another model's own values apply when that one is loaded."""
    defaults = {
        option.attribute: option.default
        for option in SAMPLING
        if sources.get(option.key) == "model"
        and getattr(settings, option.attribute) == getattr(given, option.attribute)
    }
    depth = BY_KEY["mtp-draft"]
    if settings.demo and settings.mtp_draft == DEMO_DEPTH and sources.get(depth.key, "default") == "default":
        defaults[depth.attribute] = depth.default
    return replace(settings, **defaults)
