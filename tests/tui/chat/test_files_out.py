"""What the chat gives away: the clipboard's text, and settings that change while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds4chat.engine.events import Tuning
from ds4chat.engine.from_settings import with_tuning
from ds4chat.settings.schema import Settings
from ds4chat.settings.validate import SettingError
from ds4chat.tui.kit import clipboard
from ds4chat.tui.panels.tuning_steps import deeper, looser, paused, set_value


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
    assert [deeper(Tuning(depth=d), 1, 4).depth for d in (1, 4, "auto")] == [2, "auto", "auto"]  # type: ignore[arg-type]
    assert [deeper(Tuning(depth=d), -1, 4).depth for d in (1, 4, "auto", 0)] == [1, 3, 4, 1]  # type: ignore[arg-type]
    assert deeper(Tuning(depth=9), -1, 4).depth == 3


def test_the_margin_stays_between_nothing_and_exact() -> None:
    assert looser(Tuning(margin=1.0), 1).margin == 0.95
    assert looser(Tuning(margin=1.0), -1).margin == 1.0
    assert looser(Tuning(margin=0.02), 1).margin == 0.0


def test_a_pause_is_not_saved() -> None:
    settings = Settings(mtp_draft=3)
    off = paused(Tuning(depth=3), 3)
    assert off.depth == 0
    assert with_tuning(settings, off).mtp_draft == 3
    assert paused(off, 3).depth == 3
    assert with_tuning(settings, Tuning(depth="auto", temp=0.5)).temp == 0.5


def test_only_live_settings_can_be_set() -> None:
    assert set_value(Tuning(), "top-p", "0.5").top_p == 0.5
    with pytest.raises(SettingError, match="no setting of a running reply"):
        set_value(Tuning(), "model", "x")
