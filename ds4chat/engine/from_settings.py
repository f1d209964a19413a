"""Settings turned into the engine's own terms: a Load and a Tuning."""

from __future__ import annotations

from dataclasses import replace

from ds4chat.engine.events import Load, Tuning
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.settings.schema import Settings


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
    )


def with_demo(settings: Settings) -> Settings:
    """The settings with the demo's model filled in where ``demo`` asks for it, and its support model unless
    another one is named. Raises ModelFileError when the demo model is not installed."""
    if not settings.demo:
        return settings
    return replace(settings, model=str(demo_model()), mtp=settings.mtp or str(demo_support()))
