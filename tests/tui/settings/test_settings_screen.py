"""The settings screen: every option is there, is checked like everywhere else, and is saved to the file."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.screen_stage import Host, until, work_done
from rich.cells import cell_len
from textual.widgets import Input, OptionList, Static

from ds4chat.files import write_whole
from ds4chat.settings.load import load
from ds4chat.settings.save import save
from ds4chat.settings.schema import BY_KEY, OPTIONS, Settings
from ds4chat.tui.messages import SettingsSaved
from ds4chat.tui.settings.file import SettingsFile
from ds4chat.tui.settings.screen import SettingsScreen, accepted_values, next_value, shown_value


def sheet(path: Path, settings: Settings | None = None, wanted: str = "") -> SettingsScreen:
    settings = settings or Settings()
    return SettingsScreen(settings, SettingsFile(path, settings, {}), wanted)


async def press_and_save(app: Host, pilot, *keys: str) -> None:
    await pilot.press(*keys)
    await work_done(pilot)


def rows(app: Host) -> dict[str, str]:
    """The text of each option's row, by its key."""
    options = app.screen.query_one(OptionList)
    listed = [options.get_option_at_index(i) for i in range(options.option_count)]
    return {option.id: str(option.prompt) for option in listed if option.id}


def message(app: Host) -> str:
    return str(app.screen.query_one("#settings-message", Static).content)


async def go_to(app: Host, pilot, key: str) -> None:
    options = app.screen.query_one(OptionList)
    options.highlighted = options.get_option_index(key)
    await pilot.pause()


async def test_every_option_is_a_row_with_value_source_default_and_help(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path / "c.toml", Settings(mtp_draft=4), {"mtp-draft": "file"})
    app = Host(SettingsScreen(Settings(mtp_draft=4, temp=0.5), file))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        shown = rows(app)
        assert set(shown) == set(BY_KEY)
        assert shown["mtp-draft"].split() == ["mtp-draft", "4", "file"]
        assert shown["temp"].split() == ["temp", "0.5", "set", "in", "chat"]
        assert shown["top-p"].split() == ["top-p", "0.95", "default"]
        for key in ("mtp-margin", "theme"):
            await go_to(app, pilot, key)
            help_text = str(app.screen.query_one("#settings-help", Static).content)
            assert BY_KEY[key].help in help_text
            assert f"default {shown_value(BY_KEY[key].default)}" in help_text
        await go_to(app, pilot, "mtp-margin")
        help_text = str(app.screen.query_one("#settings-help", Static).content)
        assert "0 to 1" in help_text and "DS4_MTP_MIN_MARGIN" in help_text and "at once" in help_text


async def test_what_wins_over_the_file_is_said_beside_the_setting(tmp_path: Path) -> None:
    """The environment's margin stands above the command line; other variables below it."""
    given = load(
        {"mtp-margin": "0.5", "temp": "0.7"}, None, {"DS4_MTP_MIN_MARGIN": "0.25", "DS4_MTP_PROBE": "1"}
    )
    settings = dataclasses.replace(given.settings, mtp_probe=False, top_k=10)
    app = Host(SettingsScreen(settings, SettingsFile(tmp_path / "c.toml", given.settings, given.sources)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        shown = rows(app)
        assert shown["mtp-margin"].split() == ["mtp-margin", "0.25", "environment"]
        assert shown["temp"].split() == ["temp", "0.7", "command", "line"]
        assert shown["mtp-probe"].split()[2:] == shown["top-k"].split()[2:] == ["set", "in", "chat"]
        assert shown["top-p"].split()[-1] == "default"

        async def help_on(key: str) -> str:
            await go_to(app, pilot, key)
            return str(app.screen.query_one("#settings-help", Static).content)

        margin = await help_on("mtp-margin")
        assert "DS4_MTP_MIN_MARGIN wins over all" in margin
        assert "is set in the environment and wins over the command line and the file" in margin
        assert "DS4_MTP_PROBE is set in the environment and wins over the file" in await help_on("mtp-probe")
        assert "Given on the command line, which wins over the file" in await help_on("temp")
        for key in ("top-k", "top-p"):
            assert "wins" not in await help_on(key)


async def test_what_the_demo_brings_is_not_called_a_default(tmp_path: Path) -> None:
    given = load({"demo": True}, None, {})
    file = SettingsFile(tmp_path / "c.toml", given.settings, given.sources)
    app = Host(SettingsScreen(given.settings, file))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert rows(app)["mtp-draft"].split() == ["mtp-draft", "2", "demo"]
        assert rows(app)["demo"].split() == ["demo", "on", "command", "line"]


async def test_words_given_stand_in_the_filter(tmp_path: Path) -> None:
    app = Host(sheet(tmp_path / "c.toml", wanted="repeat penalty"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert set(rows(app)) == {"repeat-penalty"}
        await pilot.press("escape")
        assert set(rows(app)) == set(BY_KEY)


async def test_a_value_is_typed_checked_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "conf" / "config.toml"
    app = Host(sheet(path))
    async with app.run_test(size=(100, 40)) as pilot:
        await go_to(app, pilot, "mtp-draft")
        await pilot.press("enter", *"17")
        await pilot.pause()
        assert message(app) == "mtp-draft 17 is out of range: it takes 1 to 16, or auto."
        await pilot.press("enter")
        assert app.screen.query_one("#settings-value", Input).has_focus
        await pilot.press("backspace", "backspace", "7", "enter")
        await pilot.pause()
        assert app.sheet.draft.mtp_draft == 7
        assert rows(app)["mtp-draft"].split() == ["*", "mtp-draft", "7", "not", "saved"]
        await press_and_save(app, pilot, "s")
    assert tomllib.loads(path.read_text())["mtp-draft"] == 7
    assert load({}, path, {}).settings == Settings(mtp_draft=7)
    assert app.results == [Settings(mtp_draft=7)]
    assert [m.settings for m in app.seen if isinstance(m, SettingsSaved)] == [Settings(mtp_draft=7)]


async def test_switches_and_choices_turn_without_a_field(tmp_path: Path) -> None:
    app = Host(sheet(tmp_path / "c.toml"))
    async with app.run_test(size=(100, 40)) as pilot:
        await go_to(app, pilot, "lookup")
        await pilot.press("space")
        assert app.sheet.draft.lookup is True
        await pilot.press("enter")
        assert app.sheet.draft.lookup is False
        await go_to(app, pilot, "flash-attn")
        await pilot.press("right", "right", "right", "left")
        assert app.sheet.draft.flash_attn == "off"
        await pilot.press("d")
        assert app.sheet.draft == Settings()


async def test_the_filter_looks_in_names_and_help(tmp_path: Path) -> None:
    app = Host(sheet(tmp_path / "c.toml"))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        await pilot.press("slash", *"cache k")
        await pilot.pause()
        assert "cache-type-k" in rows(app) and "theme" not in rows(app)
        await pilot.press(*"zzz")
        await pilot.pause()
        assert rows(app) == {}
        await pilot.press("escape")
        await pilot.pause()
        assert set(rows(app)) == set(BY_KEY)
        await pilot.press("escape")
        await pilot.pause()
    assert app.results == [None]


async def test_leaving_with_changes_asks_once(tmp_path: Path) -> None:
    app = Host(sheet(tmp_path / "c.toml"))
    async with app.run_test(size=(100, 40)) as pilot:
        await go_to(app, pilot, "lookup")
        await pilot.press("space", "escape")
        await pilot.pause()
        assert app.results == [] and "Not saved: lookup" in message(app)
        await pilot.press("escape")
        await pilot.pause()
    assert app.results == [None] and not (tmp_path / "c.toml").exists()


async def test_esc_in_the_field_keeps_the_old_value(tmp_path: Path) -> None:
    app = Host(sheet(tmp_path / "c.toml"))
    async with app.run_test(size=(100, 40)) as pilot:
        await go_to(app, pilot, "seed")
        await pilot.press("enter", "9", "escape")
        await pilot.pause()
        assert app.sheet.draft.seed == -1 and app.screen is app.sheet
        assert app.screen.query_one(OptionList).has_focus


async def test_a_file_with_problems_is_written_over_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("mtp-draft = 99\n")
    app = Host(sheet(path))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        await press_and_save(app, pilot, "S")
        assert path.read_text() == "mtp-draft = 99\n" and app.results == []
        await press_and_save(app, pilot, "s")
        assert "write over it with s and then Shift+S in /settings" in message(app)
        assert "has a problem" in message(app) and path.read_text() == "mtp-draft = 99\n"
        await press_and_save(app, pilot, "S")
    assert app.results == [Settings()]
    assert load({}, path, {}).problems == []


async def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    app = Host(sheet(tmp_path / "file" / "c.toml"))
    async with app.run_test(size=(100, 40)) as pilot:
        await pilot.pause()
        await press_and_save(app, pilot, "s")
        assert "not saved" in message(app) and app.results == []


async def test_presets_and_keys_survive_a_save(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    settings = Settings(keys={"chat.retry": "f6"}, presets={"fast": {"mtp-draft": "auto"}})
    save(settings, path)
    app = Host(sheet(path, settings))
    async with app.run_test(size=(100, 40)) as pilot:
        await go_to(app, pilot, "keys")
        await pilot.press("enter")
        await pilot.pause()
        assert str(path) in message(app)
        await go_to(app, pilot, "lookup")
        await press_and_save(app, pilot, "space", "s")
    assert load({}, path, {}).settings == dataclasses.replace(settings, lookup=True)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_what_an_option_takes_is_said_and_its_values_turn_in_a_circle(option) -> None:
    assert accepted_values(option)
    value = next_value(option, option.default)
    if option.kind == "bool":
        assert next_value(option, value) == option.default
    elif option.kind == "choice":
        for _ in option.choices[1:]:
            value = next_value(option, value)
        assert value == option.default
    else:
        assert value is None


async def test_an_unknown_theme_names_the_nearest(tmp_path: Path) -> None:
    app = Host(sheet(tmp_path / "c.toml"))
    async with app.run_test(size=(100, 40)) as pilot:
        await go_to(app, pilot, "theme")
        await pilot.press("enter", *["backspace"] * 8, *"duskk", "enter")
        await pilot.pause()
        assert message(app) == "There is no theme 'duskk'. Did you mean dusk?"
        await pilot.press("backspace", "enter")
        await pilot.pause()
        assert app.sheet.draft.theme == "dusk"


class SlowDisk:
    """Holds up writing the settings file until it ``answers``."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def write(self, *args: Any, **options: Any) -> None:
        self.asked.set()
        assert self.answers.wait(60)
        write_whole(*args, **options)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr("ds4chat.settings.save.write_whole", disk.write)
    yield disk
    disk.answers.set()


async def test_a_slow_disk_holds_up_no_key(tmp_path: Path, slow_disk: SlowDisk) -> None:
    """What is changed while the file is written is still to be saved then."""
    path = tmp_path / "c.toml"
    app = Host(sheet(path))
    async with app.run_test(size=(100, 40)) as pilot:
        await go_to(app, pilot, "lookup")
        await pilot.press("space", "s")
        assert message(app) == "Saving…"
        await pilot.press("space")
        assert app.sheet.draft.lookup is False and not path.exists()
        slow_disk.answers.set()
        await work_done(pilot)
        assert load({}, path, {}).settings.lookup is True
        assert app.screen is app.sheet and message(app) == "1 not saved yet: s saves."
        assert rows(app)["lookup"].split() == ["*", "lookup", "off", "not", "saved"]
        await press_and_save(app, pilot, "s")
    assert load({}, path, {}).settings.lookup is False
    assert [m.settings.lookup for m in app.seen if isinstance(m, SettingsSaved)] == [True, False]


async def test_a_screen_closed_during_the_write_leaves_the_settings_saved_and_used(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    app = Host(sheet(tmp_path / "c.toml"))
    async with app.run_test(size=(100, 40)) as pilot:
        await go_to(app, pilot, "lookup")
        await pilot.press("space", "s", "escape", "escape")
        await pilot.pause()
        assert app.results == [None]
        slow_disk.answers.set()
        await work_done(pilot)
    assert load({}, tmp_path / "c.toml", {}).settings.lookup is True
    assert [m.settings.lookup for m in app.seen if isinstance(m, SettingsSaved)] == [True]


async def test_an_error_after_the_screen_was_closed_is_a_notice(tmp_path: Path, slow_disk: SlowDisk) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    app = Host(sheet(folder / "c.toml"))
    async with app.run_test(size=(100, 40), notifications=True) as pilot:
        await pilot.pause()
        await pilot.press("s", "escape")
        await until(pilot, slow_disk.asked.is_set)
        folder.rmdir()
        slow_disk.answers.set()
        await work_done(pilot)
        assert [n.message.partition(" to ")[0] for n in app._notifications] == ["The settings were not saved"]


async def test_saves_are_written_in_the_order_in_which_they_were_asked_for(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    file = SettingsFile(tmp_path / "c.toml", Settings(), {})
    saves = [file.save(Settings(mtp_draft=depth)) for depth in (3, 5, 7)]
    saves.append(file.save_preset("deep", {"mtp-draft": 9}))
    slow_disk.answers.set()
    await asyncio.gather(*saves)
    assert load({}, file.path, {}).settings == Settings(mtp_draft=7, presets={"deep": {"mtp-draft": 9}})
    assert file.source(BY_KEY["mtp-draft"], 7) == file.source(BY_KEY["presets"], file.given.presets) == "file"
    assert file.source(BY_KEY["mtp-draft"], 5) == "set in chat"


@pytest.mark.parametrize("columns", [30, 40, 60, 80])
async def test_a_row_is_one_line_and_hides_the_source_before_the_value(tmp_path: Path, columns: int) -> None:
    app = Host(sheet(tmp_path / "c.toml"))
    async with app.run_test(size=(columns, 24)) as pilot:
        await pilot.pause()
        width = app.screen.query_one(OptionList).scrollable_content_region.width
        assert all(cell_len(row) <= width for row in rows(app).values())
        assert rows(app)["mtp-margin"].split() == ["mtp-margin", "1", *(["default"] if columns > 40 else [])]
