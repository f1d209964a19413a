"""The folders: one variable moves them all, and only their owner reads them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ds4chat.settings import paths


def test_one_variable_puts_all_four_into_one_folder(tmp_path: Path) -> None:
    environ = {"DS4CHAT_HOME": str(tmp_path / "a" / "b")}
    made = {paths.made_folder(kind, environ) for kind in ("data", "cache", "log")}
    assert made == {tmp_path / "a" / "b"}
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert paths.config_file(environ) == tmp_path / "a" / "b" / "config.toml"


def test_asking_for_a_path_makes_nothing(tmp_path: Path) -> None:
    environ = {"DS4CHAT_HOME": str(tmp_path / "a")}
    paths.config_file(environ)
    paths.folder("data", environ)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="XDG variables are for Linux")
def test_without_it_the_systems_own_folders_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DS4CHAT_HOME", raising=False)
    for kind, variable in (("config", "CONFIG"), ("data", "DATA"), ("cache", "CACHE"), ("log", "STATE")):
        monkeypatch.setenv(f"XDG_{variable}_HOME", str(tmp_path / kind))
        assert paths.folder(kind).is_relative_to(tmp_path / kind / "ds4chat")


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    paths.made_folder("data", {"DS4CHAT_HOME": str(tmp_path)})
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_folder_that_cannot_be_made_is_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        paths.FolderError, match=r"cannot be made: .*\. Make it yourself, or set DS4CHAT_HOME"
    ):
        paths.made_folder("data", {"DS4CHAT_HOME": str(tmp_path / ("x" * 300))})


@pytest.mark.parametrize("below", ["", "home", "a/b"])
def test_a_file_in_the_place_of_a_folder_is_called_that(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(paths.FolderError) as refused:
        paths.made_folder("data", {"DS4CHAT_HOME": str(file / below)})
    assert str(refused.value) == (
        f"{file} is not a folder, and ds4chat keeps its files in {file / below}. Move it away, or set "
        "DS4CHAT_HOME to a folder that can be written."
    )
