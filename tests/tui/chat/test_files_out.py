"""What the chat gives away: the clipboard's text, and settings that change while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds4chat.engine.events import Depth, Tuning
from ds4chat.engine.from_settings import with_tuning
from ds4chat.settings.schema import Settings
from ds4chat.settings.validate import SettingError
from ds4chat.tui.kit import clipboard
from ds4chat.tui.panels.knobs import KNOBS, Memory, set_value


def test_the_clipboard_tool_takes_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "wl-copy"
    tool.write_text(f"#!/bin/sh\ncat > {tmp_path}/taken\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    for name in ("SSH_CONNECTION", "SSH_TTY", "DISPLAY", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert clipboard.copy("héllo")
    assert (tmp_path / "taken").read_text() == "héllo"
    monkeypatch.setenv("SSH_TTY", "/dev/pts/1")
    assert not clipboard.copy("elsewhere")


def test_depth_goes_up_to_auto_and_down_to_one() -> None:
    memory = Memory(depth=2, deepest=4)

    def depths(by: int, *starts: Depth) -> list[Depth]:
        return [KNOBS["depth"].step(Tuning(depth=start), by, memory).depth for start in starts]

    assert depths(1, 1, 4, "auto", 9) == [2, "auto", "auto", "auto"]
    assert depths(-1, 1, 4, "auto", 9) == [1, 3, 4, 3]
    assert (depths(1, 0), depths(-1, 0)) == ([2], [0]), "up takes up speculation again, as it was"


def test_the_margin_stays_between_nothing_and_exact() -> None:
    step, memory = KNOBS["margin"].step, Memory()
    assert step(Tuning(margin=1.0), -1, memory).margin == 0.95
    assert step(Tuning(margin=1.0), 1, memory).margin == 1.0
    assert step(Tuning(margin=0.02), -1, memory).margin == 0.0


def test_a_pause_is_not_saved() -> None:
    settings = Settings(mtp_draft=3)
    pause, memory = KNOBS["pause"].step, Memory(depth=3)
    off = pause(Tuning(depth=3), 1, memory)
    assert off.depth == 0
    assert with_tuning(settings, off).mtp_draft == 3
    assert pause(off, 1, memory).depth == 3
    assert with_tuning(settings, Tuning(depth="auto", temp=0.5)).temp == 0.5


def test_only_live_settings_can_be_set() -> None:
    assert set_value(Tuning(), "top-p", "0.5").top_p == 0.5
    with pytest.raises(SettingError, match="cannot change while a reply runs"):
        set_value(Tuning(), "model", "x")
