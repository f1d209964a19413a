"""The chat without a model: the card, the demo, and loads that fail beside a model that is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from kits.chat_stage import Open
from kits.screen_stage import work_done

from ds4chat.engine.events import Load
from ds4chat.models import demo
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.settings.schema import Settings


def loads(chat) -> list[Load]:
    return [command for command in chat.engine.sent if isinstance(command, Load)]


async def test_enter_on_the_card_takes_the_demo_in_its_depth(opened: Open) -> None:
    async with opened(size=(120, 30), model="", mtp_draft=Settings().mtp_draft) as chat:
        assert "loads the demo, SmolLM2 135M Instruct" in chat.shown()
        assert "/get WORDS" in chat.shown()
        await chat.press("enter")
        await chat.settle()
        (load,) = loads(chat)
        assert (load.model, load.support) == (str(demo_model()), str(demo_support()))
        assert chat.app.chat.tuning.depth == 2
        assert "loads the demo" not in chat.shown()
        await chat.press("enter")
        assert len(loads(chat)) == 1


async def test_the_card_names_the_models_of_this_disk(opened: Open, tmp_path: Path, tiny_dir: Path) -> None:
    folder = tmp_path / "home/models"
    folder.mkdir(parents=True)
    (folder / "Some-[b]Thing-7B-Q8_0.gguf").write_bytes(tiny.build("llama", tiny_dir).read_bytes())
    async with opened(size=(120, 30), model="") as chat:
        await work_done(chat.pilot)
        await chat.settle()
        assert "1 model on this disk: Some [b]Thing 7B" in chat.shown()


async def test_the_card_says_how_to_install_the_demo(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    async with opened(size=(80, 24), model="", notices=True) as chat:
        assert 'pip install "ds4chat[demo]"' in chat.shown()
        await chat.press("enter")
        await chat.settle()
        assert loads(chat) == []
        assert "The demo model is not installed." in chat.shown()


async def test_the_demo_is_a_command_and_keeps_a_depth_that_was_set(opened: Open) -> None:
    async with opened(mtp_draft=4) as chat:
        await chat.type("/model demo", "enter")
        await chat.settle()
        assert loads(chat)[-1].model == str(demo_model())
        assert chat.app.chat.tuning.depth == 4


async def test_a_model_that_cannot_be_used_leaves_the_loaded_one(
    opened: Open, tmp_path: Path, tiny_dir: Path
) -> None:
    """Checked before the load: no Load is sent, and what was typed stands in the prompt again."""
    support = tiny.build("eagle3", tiny_dir)
    (broken := tmp_path / "broken.gguf").write_bytes(b"GGUF and nothing more")
    async with opened(notices=True) as chat:
        for command in (f"/model {broken}", f"/model {support}", f"/model {tmp_path / 'gone.gguf'}"):
            await chat.type(command, "enter")
            await work_done(chat.pilot)
            await chat.settle()
            assert chat.prompt == command
            chat.screen.prompt.text_field.put("")
        assert len(loads(chat)) == 1
        assert chat.app.chat.state == "ready"
