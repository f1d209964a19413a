"""The sampling that a model's file asks for (general.sampling.*): taken where nothing sets it, not saved."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ds4chat.settings.load import Origin
from ds4chat.settings.schema import TUNING, Settings
from ds4chat.settings.validate import SettingError, check

SAMPLING = tuple(option for option in TUNING if option.group == "sampling" and option.key != "seed")


def apply_model_sampling(
    settings: Settings, given: Settings, sources: Mapping[str, Origin], asked: Mapping[str, float]
) -> tuple[Settings, Settings, dict[str, Origin]]:
    """The settings, those that the sources gave, and the sources, all with what a model asks for, by key.

    Left alone is what a file, the environment or the command line sets, and what was set in the chat, where
    ``settings`` and ``given`` differ. What a former model asked for and this one does not is at its default
    again. Strict mode is greedy: it takes nothing.
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
    """The settings as they are saved: what the model asks for is at its default, so that another model's
    own holds when that one is loaded."""
    return replace(
        settings,
        **{
            option.attribute: option.default
            for option in SAMPLING
            if sources.get(option.key) == "model"
            and getattr(settings, option.attribute) == getattr(given, option.attribute)
        },
    )
