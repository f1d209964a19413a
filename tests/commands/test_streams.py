"""What becomes of a command whose standard streams are closed or full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from kits.command_line import ds4chat

FULL = Path("/dev/full")
"""A device that takes nothing, as a full disk does."""


def run(
    *argv: str, closed: tuple[int, ...] = (), stdout: Path | None = None, **env: str
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``ds4chat`` started with these descriptors closed."""
    shell = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "ds4chat", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if stdout is None else stdout.open("w"),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        timeout=120,
    )
    return done.returncode, done.stdout or "", done.stderr


@pytest.mark.parametrize(
    ("argv", "closed", "expected"),
    [
        (("config", "path"), (1,), (0, "", "")),
        (("config", "path"), (0, 1, 2), (0, "", "")),
        (("-h",), (1,), (0, "", "")),
        (("bogus-word",), (2,), (2, "", "")),
    ],
)
def test_what_goes_to_a_closed_stream_goes_nowhere(
    tmp_path: Path, argv: tuple[str, ...], closed: tuple[int, ...], expected: tuple[int, str, str]
) -> None:
    """And nowhere else: no sentence appears on stdout, no help on stderr, and nothing crashes."""
    assert run(*argv, closed=closed, DS4CHAT_HOME=str(tmp_path)) == expected
    assert not (tmp_path / "crash.log").exists()


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Else what is written to the stream would end up in that file."""
    code = (
        "import os, sys; sys.argv = ['ds4chat', 'config', 'path']; "
        "from ds4chat.commands.main import main; main(); "
        f"number = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY); sys.exit(number)"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code], check=False, timeout=120
    )
    assert done.returncode > 2


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("argv", [("-h",), ("--version",), ("config", "show"), ("inspect", "--demo")])
def test_an_output_that_cannot_be_written_is_said(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert run(*argv, stdout=FULL, DS4CHAT_HOME=str(tmp_path)) == (
        1,
        "",
        "ds4chat: The output could not be written: No space left on device. Make room, or send it "
        "elsewhere.\n",
    )


@pytest.mark.parametrize("command", [(), ("bench",)])
def test_on_a_terminal_the_sentence_of_a_failed_load_replaces_the_progress(
    tiny_dir: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = ds4chat(
        *(*command, "-m", tiny.build("llama", tiny_dir), "--rpc", "127.0.0.1:1"),
        *(() if command else ("-p", "hi")),
        before="import sys\nsys.stderr.isatty = lambda: True",
        env={"TERM": "xterm", "COLUMNS": "120", "DS4CHAT_HOME": str(tmp_path)},
    )
    progress, _, last = done.err.rpartition("\x1b[K")
    assert done.code == 1
    assert "asking the RPC servers" in progress
    assert last.startswith("ds4chat: ") and "127.0.0.1:1" in last
