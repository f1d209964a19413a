"""Getting a model in the chat from a hub on loopback: search, choose, stop, resume, and its drafter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from kits import hub as hubs
from kits.screen_stage import Host, until
from textual.widgets import OptionList, Static

from ds4chat.tui.models.get_screen import ASKING_HINT, GetModel

REPO = "someone/Tiny-GGUF"


@pytest.fixture
def hub(tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hubs.Hub]:
    with hubs.serving() as hub:
        hub.files[REPO] = {
            "Tiny-Q4_K_M.gguf": tiny.build("llama", tiny_dir).read_bytes() + bytes(2 << 20),
            "Tiny-EAGLE3-Q8_0.gguf": tiny.build("eagle3", tiny_dir).read_bytes(),
        }
        for name, value in hubs.environment(hub, tmp_path / "hf").items():
            monkeypatch.setenv(name, value)
        yield hub


def rows(app: Host) -> list[str]:
    options = app.sheet.query_one(OptionList)
    return [str(options.get_option_at_index(i).prompt) for i in range(options.option_count)]


def detail(app: Host) -> str:
    return str(app.sheet.query_one(".model-detail", Static).content)


def hint(app: Host) -> str:
    return str(app.sheet.query_one(".sheet-hint", Static).content)


async def test_nothing_is_asked_before_enter(hub: hubs.Hub) -> None:
    app = Host(GetModel())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*"tiny")
        await pilot.pause()
        assert "Nothing is asked of the hub" in detail(app)
        await pilot.press("escape")
        await pilot.pause()
    assert app.results == [None]
    assert hub.asked == []


async def test_a_model_is_searched_for_stopped_gone_on_with_and_taken_with_its_support(
    hub: hubs.Hub, tmp_path: Path
) -> None:
    app = Host(GetModel())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(*"tiny", "enter")
        await until(pilot, lambda: any(REPO in row and "EAGLE-3" in row for row in rows(app)))
        await pilot.press("enter")
        await until(pilot, lambda: len(rows(app)) == 2)
        assert rows(app)[1].split() == ["Tiny-Q4_K_M.gguf", "Q4_K_M", rows(app)[1].split()[-2], "MB"]
        hub.holds = True
        await pilot.press("down", "enter")
        await until(pilot, lambda: "%" in detail(app) and not detail(app).strip().startswith("0%"))
        assert "what has arrived is kept" in hint(app)
        await pilot.press("escape")
        await until(pilot, lambda: "What has arrived is kept" in detail(app))
        assert "confirms" in hint(app)
        (part,) = (tmp_path / "hf").rglob("*.incomplete")
        have = part.stat().st_size
        assert have > 0
        hub.holds = False
        hub.hold.set()
        hub.asked.clear()
        await pilot.press("enter")
        await until(pilot, lambda: any("Download Tiny-EAGLE3-Q8_0.gguf" in row for row in rows(app)))
        assert hub.sent("Tiny-Q4_K_M.gguf") == [f"bytes={have}-"]
        assert app.results == []
        await pilot.press("enter")
        await until(pilot, lambda: bool(app.results))
    names = {path.name for path in (tmp_path / "hf").rglob("*.gguf")}
    assert names == {"Tiny-Q4_K_M.gguf", "Tiny-EAGLE3-Q8_0.gguf"}
    assert app.results[0].name == "Tiny-Q4_K_M.gguf"


async def test_what_goes_wrong_is_said_and_esc_goes_back(hub: hubs.Hub) -> None:
    app = Host(GetModel("nobody/nothing"))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "no repository nobody/nothing" in detail(app))
        assert "closes" in hint(app)
        await pilot.press("escape")
        await pilot.pause()
    assert app.results == [None]


async def test_a_stopped_question_promises_no_part_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    start = asyncio.create_subprocess_exec

    async def silent(*command: str, **options: Any) -> asyncio.subprocess.Process:
        return await start(command[0], "-c", "import time; time.sleep(60)", **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", silent)
    app = Host(GetModel(REPO))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "Asking" in detail(app))
        assert hint(app) == ASKING_HINT
        await pilot.press("escape")
        await until(pilot, lambda: detail(app) == "Stopped. Enter asks again.")
        assert "closes" in hint(app)


async def test_leaving_the_app_ends_the_process_before_the_event_loop(
    hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python prints a traceback for a process that is still read from when its loop is closed."""
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def watched(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*command, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched)
    app = Host(GetModel(REPO))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: bool(started))
        assert started[0].returncode is None
    assert started[0].returncode is not None
