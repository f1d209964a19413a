"""Where notices stand on the chat screen, and that no key of a setting does nothing in silence."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
from kits.chat import ended
from kits.chat_stage import Open
from kits.screen_stage import until, work_done
from textual.widgets._toast import Toast

from ds4chat.tui import app as app_module
from ds4chat.tui.actions import action_names, unknown_actions


async def test_a_notice_never_covers_the_prompt(opened: Open) -> None:
    async with opened(size=(80, 24), notices=True) as chat:
        await chat.type("/draft 99", "enter")
        await chat.pilot.pause()
        (toast,) = chat.screen.query(Toast)
        for size in ((80, 24), (140, 45), (60, 16)):
            await chat.pilot.resize_terminal(*size)
            await chat.settle()
            await chat.settle()
            assert toast.region.area > 0, size
            assert not toast.region.overlaps(chat.screen.prompt.region), size
            assert not toast.region.overlaps(chat.screen.legend_row.region), size


async def test_a_notice_stands_above_a_long_prompt_its_menu_and_the_status(
    opened: Open,
) -> None:
    async with opened(size=(80, 24), notices=True) as chat:
        await chat.type("/mtp off", "escape", "enter")
        await chat.type("/copy", "escape", "enter")
        await chat.pilot.pause()
        for typed in ("/", "\none\ntwo\nthree"):
            await chat.type(typed)
            await chat.settle()
            (toast,) = chat.screen.query(Toast)
            assert toast.region.bottom <= chat.screen.legend_row.region.y < chat.screen.prompt.region.y


async def test_a_notice_over_a_sheet_leaves_its_keys_in_sight(opened: Open) -> None:
    async with opened(size=(80, 24), notices=True) as chat:
        for key in ("ctrl+b", "f12"):
            await chat.press(key)
            chat.app.notify("Deleted.")
            await chat.settle()
            await chat.pilot.pause()
            toast = chat.app.screen.query(Toast).last()
            hint = chat.app.screen.query_one(".sheet-hint")
            assert toast.region.area > 0 and not toast.region.overlaps(hint.region)
            await chat.press("escape")


async def test_a_notice_uses_the_width_of_a_narrow_screen(opened: Open) -> None:
    async with opened(size=(40, 20), notices=True) as chat:
        await chat.type("/copy", "escape", "enter")
        await chat.pilot.pause()
        (toast,) = chat.screen.query(Toast)
        assert toast.region.width == 40


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/temp 0.5", "temp 0.00→0.50"),
        ("/set top-k 20", "top-k 40→20"),
        ("/temp", "temp is 0.00"),
        ("/temp 0", "temp is 0.00"),
        ("/draft", "depth is 2"),
        ("/preset slow", "depth 2→1"),
        ("/preset now", "the settings are those of now already"),
    ],
)
async def test_a_command_for_a_live_setting_shows_its_value(opened: Open, line: str, said: str) -> None:
    presets = {"slow": {"mtp-draft": 1}, "now": {"mtp-draft": 2}}
    async with opened(presets=presets) as chat:
        await chat.type(line, "escape", "enter")
        assert f" {said}\n" in chat.shown()


async def test_a_key_at_the_end_of_its_range_says_so(opened: Open) -> None:
    cases: list[tuple[dict, dict[str, str]]] = [
        (
            {"mtp_draft": 1, "mtp_margin": 0.0},
            {
                "f7": "depth 1 is the lowest: Ctrl+T pauses drafting",
                "f9": "margin 0 is the loosest",
            },
        ),
        (
            {"mtp_draft": "auto"},
            {
                "f8": "auto is the last: F7 goes back",
                "f10": "margin 1.00 is exact, the tightest",
                "ctrl+r": "no change of a setting to undo",
            },
        ),
    ]
    for settings, keys in cases:
        async with opened(**settings) as chat:
            before = chat.app.chat.tuning
            for key, words in keys.items():
                await chat.press(key)
                assert chat.app.chat.tuning == before, key
                assert words in chat.shown(), key


async def test_ctrl_c_leaves_for_as_long_as_it_says_so(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as chat:
        row = chat.screen.legend_row
        monkeypatch.setattr(row, "SAY_SECONDS", 0.01)
        for _ in range(2):
            await chat.press("ctrl+c")
            assert not chat.app._exit, "it was not said any more"
            await until(chat.pilot, lambda: "again leaves" not in chat.shown())
        monkeypatch.setattr(row, "SAY_SECONDS", 600.0)
        await chat.press("ctrl+c")
        assert "again leaves" in chat.shown()
        await chat.press("ctrl+c")
        assert chat.app._exit, "it was still said"


async def test_a_reply_that_begins_takes_back_that_ctrl_c_leaves(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.press("ctrl+c")
        assert "again leaves" in chat.shown()
        await chat.type("Hi", "enter")
        assert "again leaves" not in chat.shown()
        await chat.press("ctrl+c")
        await chat.push(ended(1))
        await chat.press("ctrl+c")
        assert not chat.app._exit and "again leaves" in chat.shown()


async def test_keys_for_unknown_actions_are_reported_without_holding_up_the_start(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check imports every screen."""
    asked_by: list[threading.Thread] = []

    def noted(names: Iterable[str]) -> list[str]:
        asked_by.append(threading.current_thread())
        return unknown_actions(names)

    monkeypatch.setattr(app_module, "unknown_actions", noted)
    keys = {"chat.retri": "f6", "explorer.rows": "f7", "history.nothing": "f8"}
    async with opened(keys=keys) as chat:
        await chat.settle()
        await work_done(chat.pilot)
        assert len(asked_by) == 1 and asked_by[0] is not threading.main_thread()
        named = [said.split(",")[1].split(".")[:2] for said in chat.said() if "unknown action" in said]
        assert named == [[" chat", "retri"], [" history", "nothing"]]
        nodes = [chat.app, chat.screen, *chat.screen.query("*")]
        assert {b.id for node in nodes for _, b in node._bindings if b.id} <= action_names()
