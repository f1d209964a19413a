"""Settings turned into the engine's own terms: a Load and a Tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ds4chat.engine.events import Load, ServerAddress, Tuning
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.models.errors import ModelFileError
from ds4chat.settings.schema import SERVER_KEY, Settings

SAMPLING = ("temp", "top_k", "top_p", "min_p", "repeat_penalty", "seed")
"""Fields of a Tuning for which a server has defaults of its own."""


def tuning_of(settings: Settings) -> Tuning:
    """The live part of the settings."""
    return Tuning(
        depth=settings.mtp_draft,
        margin=settings.mtp_margin,
        gate=settings.mtp_gate,
        strict=settings.mtp_strict,
        probe=settings.mtp_probe,
        full_logits=settings.mtp_full_logits,
        temp=settings.temp,
        top_k=settings.top_k,
        top_p=settings.top_p,
        min_p=settings.min_p,
        repeat_penalty=settings.repeat_penalty,
        seed=settings.seed,
    )


def chosen_sampling(sources: Mapping[str, str]) -> tuple[str, ...]:
    """The sampling fields that somebody set, by where each key's value comes from."""
    return tuple(f for f in SAMPLING if sources.get(f.replace("_", "-"), "default") != "default")


def load_of(settings: Settings, chosen: tuple[str, ...] = SAMPLING) -> Load:
    """What to load; with ``demo``, the demo's files unless a support file is named. ``chosen``: sampling
    fields that hold for a server too, instead of its own defaults. Raises ModelFileError when the demo model
    is not installed, or where there is no server of the name."""
    if settings.server:
        return Load(model="", server=_server(settings, chosen))
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
        keep_states=settings.keep_states,
    )


def _server(settings: Settings, chosen: tuple[str, ...]) -> ServerAddress:
    """The server that the settings name. Raises ModelFileError."""
    named = settings.servers.get(settings.server)
    if named is None and "://" not in settings.server:
        names = ", ".join(settings.servers) or "none yet"
        raise ModelFileError(
            f"There is no server {settings.server} in [servers] of the settings file (there: {names}), and "
            "it is "
            "no address such as http://127.0.0.1:8080."
        )
    entry = named or {"url": settings.server}
    return ServerAddress(
        url=entry["url"],
        name=settings.server if named else "",
        model=settings.server_model or entry.get("model", ""),
        key_file=settings.server_key_file or entry.get("key-file", ""),
        key_env=entry.get("key-env", SERVER_KEY),
        ca_file=settings.server_ca or entry.get("ca-file", ""),
        chosen=chosen,
    )


def with_demo(settings: Settings) -> Settings:
    """The settings with the demo's model filled in where ``demo`` asks for it, and its support model unless
    another one is named. Raises ModelFileError when the demo model is not installed."""
    if not settings.demo or settings.server:
        return settings
    return replace(settings, model=str(demo_model()), mtp=settings.mtp or str(demo_support()))
