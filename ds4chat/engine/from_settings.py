"""Settings as the engine's Load and Tuning, and a Tuning as settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ds4chat.engine.events import Load, ServerAddress, Tuning
from ds4chat.engine.rpc import RpcError, endpoints
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.models.errors import ModelFileError
from ds4chat.settings.schema import SERVER_KEY, TUNING, Settings
from ds4chat.settings.validate import check


def tuning_of(settings: Settings) -> Tuning:
    """The live part of the settings."""
    return Tuning(**{option.tuning: getattr(settings, option.attribute) for option in TUNING})


def with_tuning(settings: Settings, tuning: Tuning) -> Settings:
    """The settings with the live values of a tuning. A pause is not kept, but the depth before it."""
    return replace(
        settings,
        **{
            option.attribute: value
            for option in TUNING
            if (value := getattr(tuning, option.tuning)) != 0 or option.tuning != "depth"
        },
    )


def changed(tuning: Tuning, values: Mapping[str, Any]) -> Tuning:
    """``tuning`` with the values of these option keys; keys of other options are ignored. Raises SettingError
    for a value that its option does not allow."""
    new = {
        option.tuning: check(option, values[option.key], "chat") for option in TUNING if option.key in values
    }
    return replace(tuning, **new)


def preset_of(tuning: Tuning) -> dict[str, Any]:
    """The table of a preset with this tuning, by option key. A preset holds no pause."""
    table = {option.key: getattr(tuning, option.tuning) for option in TUNING}
    if tuning.depth == 0:
        del table["mtp-draft"]
    return table


def chosen_sampling(sources: Mapping[str, str]) -> tuple[str, ...]:
    """The sampling fields that the user set, by the source of each key's value."""
    return tuple(
        option.tuning
        for option in TUNING
        if option.group == "sampling" and sources.get(option.key, "default") not in ("default", "model")
    )


def ends_loops(settings: Settings) -> bool:
    """Whether a reply that repeats itself ends."""
    return settings.end_loops == "on" or (settings.end_loops == "demo" and settings.demo)


def load_of(settings: Settings, chosen: tuple[str, ...] = ()) -> Load:
    """What to load; with ``demo``, the demo's files unless a support file is named. ``chosen``: sampling
    fields that a server gets, instead of its own defaults. Raises ModelFileError when the demo model is not
    installed, or no server has the name."""
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
        chat_template=settings.chat_template,
        template=settings.template,
        keep_states=settings.keep_states,
        depth=settings.mtp_draft,
        rpc=_rpc(settings),
    )


def _rpc(settings: Settings) -> tuple[str, ...]:
    try:
        return endpoints(settings.rpc)
    except RpcError as error:
        raise ModelFileError(str(error)) from None


def _server(settings: Settings, chosen: tuple[str, ...]) -> ServerAddress:
    """The server that the settings name. Raises ModelFileError."""
    named = settings.servers.get(settings.server)
    if named is None and "://" not in settings.server:
        names = ", ".join(settings.servers) or "none yet"
        raise ModelFileError(
            f"There is no server {settings.server} in [servers] of the settings file (there: {names}), and "
            "it is not an address such as http://127.0.0.1:8080."
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
    """The settings with the demo's model where ``demo`` asks for it, and its support model unless another one
    is named. Raises ModelFileError when the demo model is not installed."""
    if not settings.demo or settings.server:
        return settings
    return replace(settings, model=str(demo_model()), mtp=settings.mtp or str(demo_support()))
