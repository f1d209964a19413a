"""A prompt from a pipe, a file or a terminal's absence, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny

from ds4chat.commands import prompt as module
from ds4chat.commands.arguments import UsageError
from ds4chat.commands.prompt import prompt_of, prompts_of

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes in folders")

PROMPT_OF = """
import json, sys
from ds4chat.commands.arguments import UsageError
from ds4chat.commands.prompt import prompt_of
try:
    print(json.dumps(prompt_of(*json.loads(sys.argv[1]), raw=json.loads(sys.argv[2]))))
except UsageError as error:
    sys.exit(str(error))
"""


def prompt(
    text: str | None = None, file: str | None = None, *, raw: bool = False, stdin: bytes | None = None
) -> str | None:
    """What prompt_of makes of these with ``stdin`` through a pipe, or with the null device; AssertionError
    with its sentence where it refuses."""
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    argv = [sys.executable, "-c", PROMPT_OF, json.dumps([text, file]), json.dumps(raw)]
    done = subprocess.run(argv, capture_output=True, timeout=120, **given)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_pipe_is_the_prompt_or_follows_it_after_a_blank_line() -> None:
    assert prompt(stdin=b"hi\n") == "hi"
    assert prompt("summarise", stdin="a é\nb\n".encode()) == "summarise\n\na é\nb"
    assert prompt("summarise", stdin=b"") == "summarise"
    assert prompt("summarise") == "summarise"
    assert prompt() is None


def test_a_raw_prompt_stays_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"\r\n a\r\n")
    assert prompt(file=str(tmp_path / "p"), raw=True) == "\r\n a\r\n"
    assert prompt(file=str(tmp_path / "p")) == "\r\n a"
    assert prompt(stdin=b" \n", raw=True) == " \n"


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes("\ufeffhi\r\n".encode())
    assert prompt(file=str(tmp_path / "p")) == "hi"
    assert prompt(file=str(tmp_path / "p"), raw=True) == "hi\r\n"
    assert prompt(stdin="\ufeffhi".encode()) == "hi"


def test_prompts_of_a_file_made_on_windows(tmp_path: Path) -> None:
    """Its mark, its line ends and its capitals belong to no prompt."""
    lines, objects = tmp_path / "p.txt", tmp_path / "P.JSONL"
    lines.write_bytes("\ufeffone\r\n\r\ntwo \r\n".encode())
    objects.write_bytes('\ufeff"one"\r\n{"prompt": "two"}\r\n'.encode())
    assert prompts_of(str(lines)) == ("one", "two ")
    assert prompts_of(str(objects)) == ("one", "two")


def test_a_prompt_file_is_the_whole_prompt_and_a_dash_is_the_pipe(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("from the file")
    assert prompt(file=str(tmp_path / "p"), stdin=b"not this") == "from the file"
    assert prompt(file="-", stdin=b"from the pipe") == "from the pipe"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"ab\xffc", "is not valid UTF-8: byte 2 (0xff)"),
        (b"", "The prompt is empty"),
        (b" \n\n", "The prompt is empty"),
    ],
)
def test_a_prompt_that_is_no_text_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "p").write_bytes(data)
    for given in ({"file": str(tmp_path / "p")}, {"stdin": data}):
        with pytest.raises(AssertionError) as refused:
            prompt(**given)  # type: ignore[arg-type]
        assert said in str(refused.value)


@pytest.fixture
def named_pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@contextmanager
def written(pipe: Path, data: bytes) -> Iterator[None]:
    """``data`` comes through the pipe, from a thread that ends with it."""
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    yield
    writer.join()


@POSIX
def test_a_named_pipe_is_read_as_standard_input_is(named_pipe: Path) -> None:
    with written(named_pipe, "\ufeffa é\n".encode()):
        assert prompt(file=str(named_pipe)) == "a é"
    with written(named_pipe, b"one\n\ntwo\n"):
        assert prompts_of(str(named_pipe)) == ("one", "two")
    with written(named_pipe, b"ab\xff"), pytest.raises(UsageError, match="is not valid UTF-8: byte 2"):
        prompt_of(None, str(named_pipe), raw=False)


@POSIX
def test_the_output_of_a_command_is_a_prompt_file_to_the_shell(tmp_path: Path) -> None:
    """It hands over a pipe as /dev/fd/N."""
    script = f"{shlex.quote(sys.executable)} -m ds4chat -m absent.gguf --prompt-file <(printf '\\377')"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert re.fullmatch(r"ds4chat: /dev/fd/\d+ is not valid UTF-8: byte 0 .*\n", done.stderr)
    assert done.returncode == 2


@POSIX
def test_a_named_pipe_may_hold_no_more_than_a_file(named_pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 4)
    with written(named_pipe, b"1234"):
        assert prompt_of(None, str(named_pipe), raw=False) == "1234"
    with written(named_pipe, b"12345"), pytest.raises(UsageError, match="larger than"):
        prompt_of(None, str(named_pipe), raw=False)


@POSIX
def test_a_named_pipe_that_nobody_writes_to_is_named(named_pipe: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ds4chat", "-m", "absent.gguf", "--prompt-file", str(named_pipe)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == f"ds4chat: reading the prompt from {named_pipe} until it ends.\n"
    with written(named_pipe, b"hi"):
        assert "absent.gguf does not exist" in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 1


@pytest.mark.parametrize(("name", "said"), [("missing", "does not exist"), (".", "is a folder")])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(AssertionError) as refused:
        prompt(file=str(tmp_path / name))
    assert said in str(refused.value)


def test_piped_text_reaches_the_model(tmp_path: Path) -> None:
    """The constructed model goes on from the prompt's last token, so the reply tells what it was given."""
    model = tiny.build("deepseek4", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "ds4chat", "-m", model, "--raw", "-n", "4", "-c", "128", "-t", "1"],
        input=" end now",
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "DS4CHAT_HOME": str(tmp_path)},
    )
    assert done.stdout == tiny.text(tiny.reply(tiny.encode(" end now")[-1], 4)) + "\n", done.stderr


def test_a_reader_that_leaves_early_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ds4chat", "config", "defaults"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=120), errors) == (141, b"")


def test_a_pipe_that_nobody_closes_is_named_and_not_waited_for_in_silence() -> None:
    """As when a service starts it and keeps its standard input open."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ds4chat", "-m", "absent.gguf", "-p", "hi"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said == "ds4chat: reading the prompt from standard input until it ends; use </dev/null for none.\n"
    process.stdin.close()
    assert "absent.gguf does not exist" in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 1
