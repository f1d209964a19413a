"""What the tuning keys and commands make of a Tuning, and what a load makes of the settings. Pure."""

from __future__ import annotations

from dataclasses import replace

from ds4chat.engine.events import Depth, ServerInfo, Tuning
from ds4chat.engine.from_settings import changed
from ds4chat.settings.schema import BY_KEY, TUNING, Settings
from ds4chat.settings.validate import SettingError


def with_model(settings: Settings, other: Settings) -> Settings:
    """The settings with what ``other`` loads: model, drafter and context length."""
    return replace(
        settings,
        model=other.model,
        mtp=other.mtp,
        lookup=other.lookup,
        demo=other.demo,
        ctx_size=other.ctx_size,
        server=other.server,
    )


def set_value(tuning: Tuning, key: str, raw: str) -> Tuning:
    """The tuning with one option set from what the user typed. Raises SettingError."""
    if key not in BY_KEY or not BY_KEY[key].tuning:
        raise SettingError(f"{key} is no setting of a running reply. /settings has all of them.")
    return changed(tuning, {key: raw})


def deeper(tuning: Tuning, by: int, most: int) -> Tuning:
    """One draft a step more or less, from 1 to ``most``, and auto beyond that."""
    ladder: list[Depth] = [*range(1, most + 1), "auto"]
    depth = max(1, tuning.depth) if isinstance(tuning.depth, int) else "auto"
    place = ladder.index(depth) if depth in ladder else most - 1
    return replace(tuning, depth=ladder[min(max(0, place + by), most)])


def looser(tuning: Tuning, by: int) -> Tuning:
    """The margin one step lower (by > 0) or higher."""
    slider = BY_KEY["mtp-margin"].slider
    assert slider
    margin = round(min(1.0, max(0.0, tuning.margin - by * slider.step)), slider.places)
    return replace(tuning, margin=margin)


def paused(tuning: Tuning, resume_at: Depth) -> Tuning:
    """Speculation paused, or at this depth again where it was paused."""
    return replace(tuning, depth=resume_at if tuning.depth == 0 else 0)


def untaken(server: ServerInfo | None) -> dict[str, str]:
    """Fields of a Tuning that no request to this server changes, each with the reason; none without a
    server."""
    if server is None:
        return {}
    fixed = dict(server.fixed)
    return {
        option.tuning: fixed.get(option.tuning, f"{server.kind} has no word for it in a request")
        for option in TUNING
        if option.tuning not in server.live
    }


def taken(before: Tuning, wanted: Tuning, server: ServerInfo | None) -> tuple[Tuning, str]:
    """What of a change can be: ``wanted`` without the fields that the server fixes, and a sentence for the
    first of those; empty where all of it can."""
    changed = [(f, why) for f, why in untaken(server).items() if getattr(wanted, f) != getattr(before, f)]
    if not changed:
        return wanted, ""
    field, why = changed[0]
    return replace(wanted, **{f: getattr(before, f) for f, _ in changed}), f"{field} stays as it is: {why}."


def is_default(tuning: Tuning, field: str) -> bool:
    """Nobody changed this field of the tuning."""
    return bool(getattr(tuning, field) == getattr(Tuning(), field))
