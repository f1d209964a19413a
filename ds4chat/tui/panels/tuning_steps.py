"""The live part of the settings: how a Tuning and the settings hold the same values. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ds4chat.engine.events import Depth, Tuning
from ds4chat.settings.schema import BY_KEY, Settings
from ds4chat.settings.validate import SettingError, check
from ds4chat.tui.panels.tuning import TUNING_FIELDS

MARGIN_STEP = 0.05


def with_tuning(settings: Settings, tuning: Tuning) -> Settings:
    """The settings with the live values of a tuning. A pause is not kept: the depth before it stays."""
    values: dict[str, Any] = {
        BY_KEY[key].attribute: getattr(tuning, field) for key, field in TUNING_FIELDS.items()
    }
    if tuning.depth == 0:
        del values["mtp_draft"]
    return replace(settings, **values)


def with_model(settings: Settings, other: Settings) -> Settings:
    """The settings with what ``other`` loads: model, drafter and context length."""
    return replace(
        settings,
        model=other.model,
        mtp=other.mtp,
        lookup=other.lookup,
        demo=other.demo,
        ctx_size=other.ctx_size,
    )


def set_value(tuning: Tuning, key: str, raw: str) -> Tuning:
    """The tuning with one option set from what the user typed. Raises SettingError."""
    if key not in TUNING_FIELDS:
        raise SettingError(f"{key} is no setting of a running reply. /settings has all of them.")
    return replace(tuning, **{TUNING_FIELDS[key]: check(BY_KEY[key], raw)})


def deeper(tuning: Tuning, by: int, most: int) -> Tuning:
    """One draft a step more or less, from 1 to ``most``, and auto beyond that."""
    ladder: list[Depth] = [*range(1, most + 1), "auto"]
    depth = max(1, tuning.depth) if isinstance(tuning.depth, int) else "auto"
    place = ladder.index(depth) if depth in ladder else most - 1
    return replace(tuning, depth=ladder[min(max(0, place + by), most)])


def looser(tuning: Tuning, by: int) -> Tuning:
    """The margin one step lower (by > 0) or higher."""
    margin = round(min(1.0, max(0.0, tuning.margin - by * MARGIN_STEP)), 2)
    return replace(tuning, margin=margin)


def paused(tuning: Tuning, resume_at: Depth) -> Tuning:
    """Speculation paused, or at this depth again where it was paused."""
    return replace(tuning, depth=resume_at if tuning.depth == 0 else 0)
