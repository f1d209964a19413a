"""The chat takes the sampling that the loaded model asks for."""

from __future__ import annotations

from dataclasses import replace

from kits.chat import MODEL, loaded
from kits.chat_stage import Open

from ds4chat.settings.load import read_file

ASKS = replace(loaded(), target=replace(MODEL, sampling=(("temp", 0.6), ("top-k", 20))))
PLAIN = replace(loaded(), target=replace(MODEL, path="/models/plain.gguf"))


async def test_the_first_prompt_is_sampled_as_the_model_asks(opened: Open) -> None:
    async with opened(load=ASKS) as chat:
        await chat.type("one", "enter")
        assert (chat.engine.generates[0].tuning.temp, chat.engine.generates[0].tuning.top_k) == (0.6, 20)


async def test_another_models_defaults_follow_and_what_was_set_stays(opened: Open) -> None:
    async with opened(load=ASKS) as chat:
        await chat.type("/set top-k 33", "enter")
        chat.engine.on_load(PLAIN)
        await chat.type("/ctx 512", "enter")
        await chat.settle()
        await chat.type("one", "enter")
        assert (chat.engine.generates[0].tuning.temp, chat.engine.generates[0].tuning.top_k) == (0.0, 33)


async def test_saving_writes_what_was_set_and_not_what_the_model_asks(opened: Open) -> None:
    async with opened(load=ASKS) as chat:
        await chat.type("/set top-k 33", "enter")
        await chat.type("/save", "enter")
        await chat.searched()
        values = read_file(chat.app.settings_file.path).values
        assert values["top-k"] == 33
        assert "temp" not in values
        assert chat.app.chat.tuning.temp == 0.6
