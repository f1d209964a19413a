"""``ds4chat config check``: what it says of names that only the chat can know."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds4chat.commands import main as cli


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))
    return tmp_path


def test_a_theme_that_no_file_has_is_a_problem(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "config.toml"
    file.write_text('theme = "papier"\n')
    assert cli.main(["config", "check"]) == 1
    assert capsys.readouterr().out == f"{file}: There is no theme 'papier'. Did you mean paper?\n"


@pytest.mark.parametrize("name", ["paper", "mine", "nord"])
def test_a_theme_that_the_chat_takes_is_none(
    home: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One of ds4chat's, one of the user's, one of Textual's."""
    (home / "themes").mkdir()
    shipped = Path(cli.__file__).parents[2] / "themes" / "paper.toml"
    (home / "themes" / "mine.toml").write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    file = home / "config.toml"
    file.write_text(f'theme = "{name}"\n')
    assert cli.main(["config", "check"]) == 0
    assert capsys.readouterr().out == f"{file}: no problems.\n"


def test_a_key_for_an_action_that_no_screen_has_is_a_problem(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "config.toml"
    file.write_text('[keys]\n"chat.retri" = "f6"\n"explorer.rows" = "f7"\n"zzz.q" = "f8"\n')
    assert cli.main(["config", "check"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: [keys] names an unknown action, chat.retri. Did you mean chat.retry?",
        f"{file}: [keys] names an unknown action, zzz.q. F1 in the chat lists them.",
    ]
