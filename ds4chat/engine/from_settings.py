"""Settings in the engine's own terms: a Load, and a Tuning and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import Load, Tuning
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.settings.schema import TUNING, Settings
from ds4chat.settings.validate import check


def tuning_of(settings: Settings) -> Tuning:
    """The live part of the settings."""
    return Tuning(**{option.tuning: getattr(settings, option.attribute) for option in TUNING})


def with_tuning(settings: Settings, tuning: Tuning) -> Settings:
    """The settings with the live values of a tuning. A pause is not kept: the depth before it stays."""
    return replace(
        settings,
        **{
            option.attribute: value
            for option in TUNING
            if (value := getattr(tuning, option.tuning)) != 0 or option.tuning != "depth"
        },
    )


def changed(tuning: Tuning, values: Mapping[str, Any]) -> Tuning:
    """``tuning`` with what these option keys are set to; keys of other options are passed over. Raises
    SettingError for a value that its option does not take."""
    new = {option.tuning: check(option, values[option.key]) for option in TUNING if option.key in values}
    return replace(tuning, **new)


def preset_of(tuning: Tuning) -> dict[str, Any]:
    """The table of a preset that holds this tuning, by option key. A pause is no part of a preset."""
    table = {option.key: getattr(tuning, option.tuning) for option in TUNING}
    if tuning.depth == 0:
        del table["mtp-draft"]
    return table


def load_of(settings: Settings) -> Load:
    """What to load; with ``demo``, the demo's files unless a support file is named. Raises ModelFileError
    when the demo model is not installed."""
    settings = with_demo(settings)
    return Load(
        model=settings.model,
        support=settings.mtp,
        lookup=settings.lookup,
        ctx=settings.ctx_size,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
        split_mode=settings.split_mode,  # type: ignore[arg-type]
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        flash_attn=settings.flash_attn,  # type: ignore[arg-type]
        strict=settings.mtp_strict,
        convert=settings.mtp_convert,
        chat_template=settings.chat_template,
        template=settings.template,
        keep_states=settings.keep_states,
        depth=settings.mtp_draft,
    )


def with_demo(settings: Settings) -> Settings:
    """The settings with the demo's model filled in where ``demo`` asks for it, and its support model unless
    another one is named. Raises ModelFileError when the demo model is not installed."""
    if not settings.demo:
        return settings
    return replace(settings, model=str(demo_model()), mtp=settings.mtp or str(demo_support()))
