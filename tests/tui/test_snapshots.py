"""Pictures of the panels and screens at 80x24 and 140x45, dark and light, with no chance in them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import tiny
from kits.looks import looks
from kits.panel_stage import LOADED, OFF, Stage, step
from kits.screen_stage import work_done
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from ds4chat.engine.baseline import PlainTime
from ds4chat.engine.events import Ended, Step, Tuning
from ds4chat.engine.stats import Stats
from ds4chat.settings.schema import Settings
from ds4chat.tui.help import about
from ds4chat.tui.help.about import AboutScreen
from ds4chat.tui.help.screen import HelpScreen, collect_keys
from ds4chat.tui.log.screen import LogScreen
from ds4chat.tui.models.screen import ModelPicker
from ds4chat.tui.settings.file import SettingsFile
from ds4chat.tui.settings.screen import SettingsScreen
from ds4chat.tui.settings.theme_picker import ThemePicker
from ds4chat.tui.themes import load_themes

# Pictures of whole screens; what they show is tested without them, too.
pytestmark = pytest.mark.slow

WIDE_DOCK = 50

Scene = Callable[[Pilot], Awaitable[None]]


def a_reply() -> list[Step]:
    """Ninety steps whose acceptance goes up and down, with a change of depth and margin at the fortieth."""
    accepted = (2, 1, 0, 2, 2, 1, 2, 0, 1)
    before, after = Tuning(depth=2), Tuning(depth=3, margin=0.8)
    return [
        step(i, accepted[i % 9], 2, before) if i < 40 else step(i, accepted[i % 9] + (i % 2), 3, after)
        for i in range(90)
    ]


async def filled(pilot: Pilot, theme: str) -> None:
    """A finished reply in the dock."""
    app = pilot.app
    assert isinstance(app, Stage)
    app.theme = theme
    app.animation_level = "none"
    if app.size.width > 100:
        app.dock.styles.width = WIDE_DOCK
        app.dock.styles.dock = "right"
    app.dock.show_engine(LOADED, "ready")
    app.dock.tuning.begin_with(Tuning(depth=2))
    app.dock.tuning.show_presets({"careful": {"mtp-draft": 2}})
    steps, stats = a_reply(), Stats(plain=PlainTime(LOADED.plain_ms))
    for one in steps:
        stats.fold(one)
    app.dock.show_step_batch(steps, stats, stats)
    app.dock.tuning.show_tuning(Tuning(depth=3, margin=0.8))
    ended = Ended(1, "stop", "", 300, 100, 400.0, stats.ms["total"], 523.0, 900, 1)
    stats.fold(ended)
    app.dock.show_end(stats)
    await drawn(pilot)


async def drawn(pilot: Pilot) -> None:
    """Until every worker is done, every figure drawn, and no cursor blinks."""
    app = pilot.app
    await work_done(pilot)
    while isinstance(app, Stage) and app.dock.drawing_due:
        await pilot.pause(0.02)
    for field in app.screen.query(Input):
        field.cursor_blink = False
    app.mouse_position = (0, 0)  # type: ignore[assignment]
    await pilot.pause()


@pytest.fixture
def same(snap_compare, monkeypatch, tmp_path):
    """Compare a scene over the filled dock, from a folder of its own so that paths are short and the same."""
    monkeypatch.chdir(tmp_path)

    def compare(scene: Scene, size: tuple[int, int], theme: str) -> bool:
        async def before(pilot: Pilot) -> None:
            await filled(pilot, theme)
            await scene(pilot)
            await drawn(pilot)

        return snap_compare(Stage(), terminal_size=size, run_before=before)

    return compare


@looks
def test_dock(same, size, theme) -> None:
    async def scene(pilot: Pilot) -> None:
        pilot.app.set_focus(None)

    assert same(scene, size, theme)


@looks
def test_dock_end_with_a_typed_value(same, size, theme) -> None:
    async def scene(pilot: Pilot) -> None:
        control = pilot.app.query_one("#control-margin")
        control.focus()
        await pilot.press("0", ".", "5")
        pilot.app.dock.scroll_end(animate=False)

    assert same(scene, size, theme)


@looks
def test_dock_folded_with_speculation_off(same, size, theme) -> None:
    async def scene(pilot: Pilot) -> None:
        dock = pilot.app.dock
        pilot.app.set_focus(None)
        dock.timings.fold(True)
        dock.tuning.fold(True)
        dock.reset_reply()
        dock.show_engine(OFF, "ready")

    assert same(scene, size, theme)


@looks
def test_confidence_with_a_cursor(same, size, theme) -> None:
    async def scene(pilot: Pilot) -> None:
        dock = pilot.app.dock
        for panel in (dock.acceptance, dock.timings, dock.tuning):
            panel.fold(True)
        dock.confidence.log_view.focus()
        await drawn(pilot)
        await pilot.press("up", "up", "up")

    assert same(scene, size, theme)


@looks
def test_settings(same, size, theme) -> None:
    async def scene(pilot: Pilot) -> None:
        settings = Settings(mtp_draft=4, theme=theme, model="models/target.gguf")
        given = Settings(mtp_draft=4, model="models/target.gguf")
        file = SettingsFile(Path("config.toml"), given, {"model": "command line", "mtp-draft": "file"})
        pilot.app.push_screen(SettingsScreen(settings, file))
        await drawn(pilot)
        options = pilot.app.screen.query_one(OptionList)
        options.highlighted = options.get_option_index("mtp-draft")
        await pilot.press("enter", *"20")

    assert same(scene, size, theme)


@looks
def test_model_picker(same, size, theme, tmp_path) -> None:
    for kind in ("deepseek4", "llama", "llama-draft", "qwen35-nextn"):
        tiny.build(kind, Path("models"))
    Path("models/broken.gguf").write_bytes(b"this is no model")

    async def scene(pilot: Pilot) -> None:
        picker = ModelPicker("models", "models/deepseek4.gguf", home=Path("nobody"))
        pilot.app.push_screen(picker)

    assert same(scene, size, theme)


@looks
def test_support_picker(same, size, theme, tmp_path) -> None:
    for kind in ("deepseek4", "deepseek4-support", "eagle3", "llama-draft"):
        tiny.build(kind, Path("models"))

    async def scene(pilot: Pilot) -> None:
        pilot.app.push_screen(ModelPicker("models", "models/deepseek4.gguf", home=Path("nobody")))
        await drawn(pilot)
        await pilot.press("enter")
        await drawn(pilot)
        await pilot.press("end")

    assert same(scene, size, theme)


@looks
def test_help(same, size, theme) -> None:
    async def scene(pilot: Pilot) -> None:
        commands = [("/draft N", "Most tokens drafted a step"), ("/quit", "Leave")]
        pilot.app.push_screen(HelpScreen(collect_keys(pilot.app), commands))

    assert same(scene, size, theme)


@looks
def test_log_with_a_search(same, size, theme, tmp_path) -> None:
    lines = [f"2026-11-29 12:00:{i:02},000 INFO ds4chat.llama: layer {i} loaded" for i in range(60)]
    lines[40] = "2026-11-29 12:00:40,000 WARNING ds4chat.llama: the cache is small"
    lines[55] = "2026-11-29 12:00:55,000 ERROR ds4chat.llama: out of memory, " + "a long story of it, " * 5
    Path("ds4chat.log").write_text("\n".join(lines) + "\n")

    async def scene(pilot: Pilot) -> None:
        pilot.app.push_screen(LogScreen(Path("ds4chat.log")))
        await drawn(pilot)
        await pilot.press("slash", *"layer 5", "enter", "N", "N")

    assert same(scene, size, theme)


@looks
def test_about(same, size, theme, monkeypatch) -> None:
    monkeypatch.setattr(about, "dependencies", lambda: ["textual", "numpy", "llama-cpp-python"])
    monkeypatch.setattr(about, "package_licence", lambda name: ("1.2.3", "MIT"))
    monkeypatch.setattr(about, "__version__", "1.0.0")
    built = ["llama.cpp of llama-cpp-python 1.2.3", "  CUDA     NVIDIA H200", "  CPU      Intel Xeon"]
    monkeypatch.setattr(about, "build_lines", lambda: built)
    monkeypatch.setattr(about.platform, "python_version", lambda: "3.11.0")
    machine = [("system", "Linux x86_64 6.1.0"), ("processor", "A processor, 2 cores"), ("memory", "16 GB")]
    monkeypatch.setattr(about, "machine_facts", lambda loaded: machine)

    async def scene(pilot: Pilot) -> None:
        pilot.app.push_screen(AboutScreen([("settings", Path("config.toml")), ("log", Path("ds4chat.log"))]))

    assert same(scene, size, theme)


@looks
def test_theme_picker(same, size, theme) -> None:
    async def scene(pilot: Pilot) -> None:
        pilot.app.push_screen(ThemePicker([one.name for one in load_themes(None)[0]]))

    assert same(scene, size, theme)
