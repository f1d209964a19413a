"""A native crash of a one shot: a sentence and an exit code, where the system alone would say "Aborted"."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
import tiny
from kits.faults import PATIENCE, runs, until

# Whole programs that are killed, locked out or left without a disk, one process or more each.
pytestmark = pytest.mark.slow

OneShot = subprocess.Popen[str]


@pytest.fixture
def one_shot(tiny_dir: Path) -> Iterator[Callable[[], OneShot]]:
    """Starts one shots with an endless reply, and waits until it comes."""
    started: list[OneShot] = []

    def start() -> OneShot:
        model = str(tiny.build("llama", tiny_dir))
        command = ["-m", model, "-p", "go on in a loop", "-c", "400000", "-t", "1", "--ignore-eos"]
        process = subprocess.Popen(
            [sys.executable, "-m", "ds4chat", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.read(8)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def worker(process: OneShot) -> int:
    """The process that runs the model, which the one that was started waits for."""
    (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGABRT, "llama.cpp aborted (SIGABRT)"),
        (signal.SIGSEGV, "it was ended by SIGSEGV"),
        (signal.SIGKILL, "it was killed (SIGKILL), most often because memory ran out"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_crash_is_a_sentence_with_advice(
    one_shot: Callable[[], OneShot], number: signal.Signals, words: str
) -> None:
    process = one_shot()
    os.kill(worker(process), number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"ds4chat: The engine stopped: {words}." in err
    assert "Try another or a shorter prompt" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
def test_who_ends_what_was_started_ends_both(one_shot: Callable[[], OneShot], number: signal.Signals) -> None:
    process = one_shot()
    pid = worker(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -number
    assert "The engine stopped" not in err
    until(lambda: not runs(pid), "the worker's end")


def test_an_interrupt_of_what_was_started_keeps_what_came(one_shot: Callable[[], OneShot]) -> None:
    process = one_shot()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out.endswith("\n")
    assert "The engine stopped" not in err


def test_ctrl_c_in_a_terminal_keeps_what_came(tiny_dir: Path) -> None:
    """The terminal sends it to both processes; twice would end the reply without its last line."""
    model = str(tiny.build("llama", tiny_dir))
    command = ["-m", "ds4chat", "-m", model, "-p", "go on in a loop", "-c", "400000", "-t", "1"]
    terminal = pexpect.spawn(sys.executable, command, timeout=PATIENCE, encoding="utf-8")
    terminal.expect("old red hut by sea")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert (terminal.exitstatus, terminal.signalstatus) == (130, None)
    assert terminal.before.endswith("\r\n")


def test_the_exit_codes_of_commands_come_through(tmp_path: Path) -> None:
    def code(*words: str) -> int:
        command = [sys.executable, "-m", "ds4chat", *words]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode

    missing = str(tmp_path / "missing.gguf")
    assert code("-m", missing, "-p", "x") == 1
    assert code("check", "-m", missing, "-p", "x") == 1
    assert code("bench", "--no-such-option") == 2


def test_it_ends_where_the_ends_of_children_are_ignored(tiny_dir: Path) -> None:
    """As under a parent that set SIGCHLD to SIG_IGN, which a new program inherits."""
    ignoring = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    code = f"import os, signal, sys; {ignoring}; os.execv(sys.argv[1], sys.argv[1:])"
    model = str(tiny.build("llama", tiny_dir))
    command = [sys.executable, "-m", "ds4chat", "-m", model, "--raw", "-p", "go on", "-n", "3"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, timeout=PATIENCE)
    text = tiny.text(tiny.reply(tiny.encode("go on")[-1], 3))
    assert (done.returncode, done.stdout.decode()) == (0, f"{text}\n")
