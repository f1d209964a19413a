"""Every command, on a terminal, against files, paths, settings, logs and a database full of hostile text:
nothing of it reaches the terminal but what can be printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kits import hostile
from kits.hostile import Place
from kits.terminal import Terminal
from tiny.vocab import HOSTILE_WORD

from ds4chat.commands.main import main


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> Iterator[Place]:
    """A home with everything hostile, in force for these tests."""
    made = hostile.lay_out(tmp_path_factory.mktemp("hostile"), tiny_dir)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS4CHAT_HOME", str(made.home))
        yield made


RUN = ["-t", "1", "-c", "256", "-n", "12", "--raw", "-p", " loop"]

# fmt: off
COMMANDS: dict[str, Callable[[Place], list[str]]] = {
    "one shot": lambda p: ["-m", str(p.model), *RUN],
    "one shot, logs": lambda p: ["-m", str(p.model), *RUN, "--lookup", "--mtp-timing", "--mtp-spec-log",
                                 "--mtp-conf-log"],
    "one shot, JSON": lambda p: ["-m", str(p.model), *RUN, "--json"],
    "one shot, missing": lambda p: ["-m", p.missing, *RUN],
    "one shot, garbage": lambda p: ["-m", str(p.garbage), *RUN],
    "one shot, support": lambda p: ["-m", str(p.model), "--mtp", str(p.garbage), *RUN],
    "one shot, log file": lambda p: ["-m", str(p.model), "--log-file",
                                     str(p.home / hostile.NAME / "x"), *RUN],
    "one shot, settings": lambda p: ["--config", str(p.settings), "-m", str(p.model), *RUN],
    "one shot, prompt file": lambda p: ["-m", str(p.model), "--prompt-file", p.missing],
    "prompts": lambda p: ["-m", str(p.model), "--prompts-file", str(p.garbage), "-t", "1", "-n", "3"],
    "option": lambda p: [f"--{hostile.NAME}"],
    "option value": lambda p: ["--ctx", hostile.NAME],
    "choice": lambda p: ["--split-mode", hostile.NAME],
    "stray word": lambda p: [hostile.NAME],
    "inspect": lambda p: ["inspect", str(p.model)],
    "inspect, JSON": lambda p: ["inspect", str(p.model), "--json"],
    "inspect, pair": lambda p: ["inspect", str(p.model), str(p.model)],
    "inspect, missing": lambda p: ["inspect", p.missing],
    "inspect, garbage": lambda p: ["inspect", str(p.garbage)],
    "check": lambda p: ["check", "-m", str(p.model), "--lookup", *RUN],
    "check, JSON": lambda p: ["check", "-m", str(p.model), "--lookup", *RUN, "--json"],
    "check, nothing drafts": lambda p: ["check", "-m", str(p.model), *RUN],
    "bench": lambda p: ["bench", "-m", str(p.garbage)],
    "bench, address": lambda p: ["bench", "-m", str(p.model), "--compare", hostile.NAME],
    "convert": lambda p: ["convert-mtp", str(p.model), str(p.model), p.missing],
    "convert, missing": lambda p: ["convert-mtp", p.missing, p.missing, p.missing],
    "logs list": lambda p: ["logs", "list"],
    "logs list, JSON": lambda p: ["logs", "list", "--json"],
    "logs show": lambda p: ["logs", "show", "1"],
    "logs show, JSON": lambda p: ["logs", "show", "1", "--json"],
    "logs search": lambda p: ["logs", "search", "evil"],
    "logs search, JSON": lambda p: ["logs", "search", "evil", "--json"],
    "logs export md": lambda p: ["logs", "export", "1", "--format", "md"],
    "logs export json": lambda p: ["logs", "export", "1", "--format", "json"],
    "logs export jsonl": lambda p: ["logs", "export", "1", "--format", "jsonl"],
    "logs export, file": lambda p: ["logs", "export", "1", "--output", f"{p.missing}.md"],
    "logs import": lambda p: ["logs", "import", str(p.garbage)],
    "logs, word": lambda p: ["logs", hostile.NAME],
    "config show": lambda p: ["config", "show", "--config", str(p.settings)],
    "config check": lambda p: ["config", "check", str(p.settings)],
    "config path": lambda p: ["config", "path", "--config", str(p.settings)],
    "config write": lambda p: ["config", "write", "--config", f"{p.missing}.toml", "--system-prompt",
                               hostile.TEXT],
    "config show, written": lambda p: ["config", "show", "--config", f"{p.missing}.toml"],
    "config, word": lambda p: ["config", hostile.NAME],
}
# fmt: on

WORK = {
    "one shot",
    "one shot, logs",
    "one shot, JSON",
    "one shot, log file",
    "prompts",
    "inspect",
    "inspect, JSON",
    "check",
    "check, JSON",
    "logs list",
    "logs list, JSON",
    "logs show",
    "logs show, JSON",
    "logs search",
    "logs search, JSON",
    "logs export md",
    "logs export json",
    "logs export jsonl",
    "logs export, file",
    "config path",
    "config write",
    "config show, written",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_lets_it_through(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = hostile.ScreenStream(), hostile.ScreenStream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    code = main(COMMANDS[name](place))
    assert (code == 0) == (name in WORK), err.written
    assert (sys.stdout, sys.stderr) == (out, err)
    assert out.written + err.written, "it says something"
    assert hostile.leaks(out.written) + hostile.leaks(err.written) == []
    # ds4chat's own use of it is the beginning of a line that is drawn anew.
    assert b"\r" not in (out.written + err.written).replace(b"\r\x1b[K", b"")
    assert b"\x1b" not in err.written.replace(b"\r\x1b[K", b"")
    assert b"\nFORGED" not in err.written


@pytest.mark.parametrize("name", ["one shot", "one shot, settings"])
def test_a_real_terminal_gets_the_answer_in_visible_characters(place: Place, name: str) -> None:
    run = Terminal(*COMMANDS[name](place))
    run.leave()
    assert hostile.leaks(run.raw.replace(b"\r\n", b"\n")) == []
    if name == "one shot":
        assert " we go up to the old \\x1bc\\x07 hut" in run.text.replace("\n", "")


def test_a_pipe_gets_the_answer_byte_for_byte(place: Place) -> None:
    command = [sys.executable, "-m", "ds4chat", *COMMANDS["one shot"](place)]
    done = subprocess.run([os.fsencode(word) for word in command], capture_output=True, check=False)
    assert done.stdout.startswith(f" we go up to the old {HOSTILE_WORD} hut".encode())
    assert hostile.leaks(done.stderr) == []


def test_the_log_file_holds_lines_that_a_terminal_can_show(place: Place, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    command = [sys.executable, "-m", "ds4chat", *COMMANDS["one shot"](place), "--log-file", str(log)]
    subprocess.run([os.fsencode(word) for word in command], capture_output=True, check=False)
    written = log.read_bytes()
    assert b"\\x1b]0;PWN" in written and hostile.leaks(written) == []
    assert b"\nFORGED" not in written


def test_an_error_that_nobody_foresaw_is_printable_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    err = hostile.ScreenStream()
    monkeypatch.setattr(sys, "stderr", err)

    def fails(words: list[str]) -> int:
        raise RuntimeError(hostile.TEXT)

    monkeypatch.setattr("ds4chat.commands.logs.main", fails)
    assert main(["logs"]) == 1
    assert b"Unexpected error" in err.written and hostile.leaks(err.written) == []
    traces = list(place.home.rglob("crash.log"))
    assert traces and all(hostile.leaks(trace.read_bytes()) == [] for trace in traces)
