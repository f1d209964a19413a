"""What a model asks for: taken where nothing sets it, given back with the next model, never saved."""

from __future__ import annotations

from dataclasses import replace

from ds4chat.settings.load import merge
from ds4chat.settings.model_sampling import apply_model_sampling, for_file
from ds4chat.settings.schema import Settings

ASKED = {"temp": 0.6, "top-k": 20, "top-p": 0.8}


def test_what_is_set_anywhere_wins_over_the_model() -> None:
    settings, sources, _ = merge({"top-p": 0.5}, {}, {"top-k": 7})
    now, given, origins = apply_model_sampling(settings, settings, sources, ASKED)
    assert (now.temp, now.top_k, now.top_p, now.min_p) == (0.6, 7, 0.5, 0.05)
    assert [origins[key] for key in ("temp", "top-k", "top-p", "min-p")] == [
        "model",
        "command line",
        "file",
        "default",
    ]
    assert given == now


def test_what_was_set_in_the_chat_stays_and_the_rest_follows_the_next_model() -> None:
    first, given, sources = apply_model_sampling(Settings(), Settings(), {}, ASKED)
    changed = replace(first, top_k=99)
    now, _, origins = apply_model_sampling(changed, given, sources, {"top-p": 0.9})
    assert (now.temp, now.top_k, now.top_p) == (0.0, 99, 0.9)
    assert (origins["temp"], origins["top-p"]) == ("default", "model")


def test_a_value_out_of_range_and_strict_mode_take_nothing() -> None:
    for bad in (-1.0, 11.0, float("nan")):
        now, _, origins = apply_model_sampling(Settings(), Settings(), {}, {"temp": bad})
        assert (now, origins["temp"]) == (Settings(), "default")
    strict = Settings(mtp_strict=True)
    assert apply_model_sampling(strict, strict, {}, ASKED)[0] == strict


def test_what_the_model_asks_for_is_not_saved_and_what_the_user_set_is() -> None:
    now, given, sources = apply_model_sampling(Settings(), Settings(), {}, ASKED)
    assert for_file(now, given, sources) == Settings()
    assert for_file(replace(now, temp=0.3), given, sources) == Settings(temp=0.3)
