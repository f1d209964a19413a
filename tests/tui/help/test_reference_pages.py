"""The generated pages of docs/ say what the chat and the help say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from kits.chat_stage import Open
from textual.command import CommandPalette

from ds4chat.commands.ds4_differences import DIFFERENCES
from ds4chat.settings.load import parse
from ds4chat.settings.save import document
from ds4chat.tui.command_table import COMMANDS

ROOT = Path(__file__).resolve().parents[3]


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", ROOT / "tools" / "reference_pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TOOL = _tool()


@pytest.fixture(scope="module")
def keys_page() -> str:
    return str(TOOL.keys_page())


@pytest.mark.parametrize("name", TOOL.PAGES)
def test_a_generated_page_is_what_the_tool_writes(name: str) -> None:
    """Regenerate it with ``python tools/reference_pages.py``."""
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == TOOL.PAGES[name]()


def test_the_page_of_keys_has_every_command_and_the_keys_of_every_screen(keys_page: str) -> None:
    for command in COMMANDS:
        assert f"`/{command.name}" in keys_page
    for name in ("chat.back", "prompt.newline", "tuning.undo", "explorer.apply", "history.fork", "log.next"):
        assert f"`{name}`" in keys_page


def test_the_page_of_differences_has_every_one_that_the_help_has() -> None:
    page = TOOL.ds4_page()
    assert all(names in page and difference in page for names, difference in DIFFERENCES)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ctrl+end", "Ctrl+End"),
        ("f11", "F11"),
        ("N", "Shift+N"),
        ("shift+n", "Shift+N"),
        ("pageup", "PgUp"),
        ("equals_sign", "="),
        ("question_mark", "?"),
        ("k", "k"),
        ("ctrl+k", "Ctrl+K"),
    ],
)
def test_a_key_is_spelled_as_people_write_it(key: str, text: str) -> None:
    assert TOOL.spelled(key) == text


def test_the_example_of_a_key_in_the_settings_file_names_an_action(keys_page: str) -> None:
    """The example is commented out: without the mark, it must work."""
    lines = document().splitlines()
    example = [line[2:] for line in lines[lines.index("# [keys]") :][:2]]
    keys = parse("\n".join(example).encode(), Path("/")).values["keys"]
    assert keys and all(f"`{name}`" in keys_page for name in keys)
    assert "\n".join(f"    {line}" for line in example) in keys_page


async def test_the_palette_has_a_key_of_its_own_and_help_lists_it(opened: Open) -> None:
    async with opened() as chat:
        await chat.press("ctrl+p")
        assert isinstance(chat.app.screen, CommandPalette)
        await chat.press("escape")
        await chat.press("f1", *"palette")
        assert "app.palette" in chat.app.screen.query_one("#help-lines").text  # type: ignore[attr-defined]
