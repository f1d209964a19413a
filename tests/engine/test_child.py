"""The engine process: what it answers, how it dies, and that it never stays behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny
from kits.engine import END_NOW, load_of

from ds4chat.engine.child import Engine
from ds4chat.engine.client import EngineClient, Kind
from ds4chat.engine.events import (
    Cancel,
    Command,
    Ended,
    EngineDied,
    Event,
    Generate,
    Load,
    Loaded,
    LoadFailed,
    Prefill,
    Quit,
    Replay,
    Replayed,
    Retune,
    Step,
    Tuning,
)
from ds4chat.engine.session import Session
from ds4chat.engine.wire import encode

LONG = 120.0
"""Seconds to wait for what must come; only a broken engine makes a test wait that long."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[EngineClient]:
    client = EngineClient(tmp_path / "log" / "engine.log")
    client.start()
    yield client
    client.close()


def expect(client: EngineClient, kind: type[Kind]) -> tuple[Kind, list[Event]]:
    event, seen = client.wait_for(kind, LONG)
    assert event is not None, seen
    return event, seen


def endless(reply: int = 1, depth: int = 3) -> Generate:
    return Generate(reply, prompt=END_NOW, tuning=Tuning(depth=depth))


def load(client: EngineClient, folder: Path, name: str = "llama-draft", **more: int) -> Loaded:
    client.send(load_of(folder, name, **more))
    return expect(client, Loaded)[0]


def send_together(client: EngineClient, *commands: Command) -> None:
    """The engine gets all of them before the first can be over, however long this process has to wait."""
    client._outbox.put(b"".join(map(encode, commands)))


def assert_answers(client: EngineClient, reply: int) -> None:
    client.send(Generate(reply, prompt=END_NOW, max_tokens=5))
    _, seen = expect(client, Ended)
    assert ids(seen) == tiny.reply(tiny.encode(END_NOW)[-1], 5)


def ids(events: list[Event]) -> list[int]:
    return [t.id for e in events if isinstance(e, Step) for t in e.tokens]


def test_a_reply_comes_as_events(client: EngineClient, tiny_dir: Path) -> None:
    loaded = load(client, tiny_dir, "deepseek4-support")
    assert loaded.drafter is not None
    assert (loaded.drafter.kind, loaded.off_reason) == ("nextn-support", "")
    assert loaded.plain_ms > 0
    client.send(Generate(1, prompt=END_NOW, tuning=Tuning(depth=3), max_tokens=50))
    ended, seen = expect(client, Ended)
    assert ended.finish_reason == "length"
    assert ids(seen) == tiny.reply(tiny.encode(END_NOW)[-1], 50)
    client.send(Replay(1))
    replayed, _ = expect(client, Replayed)
    assert replayed.equal


def test_cancel_and_retune_reach_a_running_reply(client: EngineClient, tiny_dir: Path) -> None:
    load(client, tiny_dir, ctx=32768)
    client.send(endless(depth=1))
    expect(client, Step)
    client.send(Retune(Tuning(depth=4)))
    for _ in range(10_000):
        step, _ = expect(client, Step)
        if step.tuning.depth == 4:
            break
    else:
        pytest.fail("the new depth was never taken up")
    client.send(Cancel(1))
    ended, _ = expect(client, Ended)
    assert ended.finish_reason == "cancelled"
    assert_answers(client, 2)


@pytest.mark.parametrize("busy", ["reply", "check"])
def test_a_retune_reaches_what_still_waits(client: EngineClient, tiny_dir: Path, busy: str) -> None:
    """The reply was asked for before the setting changed, and begins after it."""
    load(client, tiny_dir, ctx=32768)
    waiting = Generate(2, prompt=END_NOW, tuning=Tuning(depth=1), max_tokens=60)
    if busy == "check":
        client.send(Generate(1, prompt=END_NOW, tuning=Tuning(depth=1), max_tokens=2000))
        expect(client, Ended)
        send_together(client, Replay(1), waiting, Retune(Tuning(depth=4)), Cancel(1))
    else:
        client.send(endless(1, depth=1))
        expect(client, Step)
        send_together(client, waiting, Retune(Tuning(depth=4)), Cancel(1))
    _, seen = expect(client, Ended)
    if busy == "reply":
        _, seen = expect(client, Ended)
    depths = {e.tuning.depth for e in seen if isinstance(e, Step) and e.reply == 2}
    assert depths == {4}
    # It held for what was asked for before, not for what comes.
    client.send(Generate(3, prompt=END_NOW, tuning=Tuning(depth=2), max_tokens=20))
    _, seen = expect(client, Ended)
    assert {e.tuning.depth for e in seen if isinstance(e, Step)} == {2}


@pytest.fixture
def slow_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In engine processes that start from now on, a check takes 20 ms for each token more."""
    (tmp_path / "sitecustomize.py").write_text("""
import time
from ds4chat.engine import session
compare = session.compare
def slow(target, finished, reply, progress):
    return compare(target, finished, reply, lambda n: (time.sleep(0.02), progress(n)))
session.compare = slow
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("slow_check")
def test_a_check_is_stopped_and_ends_once(client: EngineClient, tiny_dir: Path) -> None:
    load(client, tiny_dir, ctx=32768)
    client.send(Generate(1, prompt=END_NOW, tuning=Tuning(depth=3), max_tokens=3000))
    expect(client, Ended)
    client.send(Replay(1))
    expect(client, Prefill)
    client.send(Cancel(1))
    client.send(Generate(2, prompt=END_NOW, max_tokens=5))
    _, seen = expect(client, Ended)
    (replayed,) = [e for e in seen if isinstance(e, Replayed)]
    assert (replayed.reply, replayed.equal, replayed.detail) == (1, None, "The check was stopped.")
    assert ids(seen) == tiny.reply(tiny.encode(END_NOW)[-1], 5)
    # Cancels of what is over are nothing to the next.
    client.send(Cancel(1))
    client.send(Replay(2))
    replayed, _ = expect(client, Replayed)
    assert replayed.equal


def test_a_check_that_cannot_be_made_says_why(client: EngineClient, tiny_dir: Path) -> None:
    client.send(Replay(1))
    replayed, _ = expect(client, Replayed)
    assert replayed.equal is None and "No model is loaded" in replayed.detail
    client.send(load_of(tiny_dir, "llama-draft"))
    client.send(Replay(7))
    replayed, _ = expect(client, Replayed)
    assert replayed.equal is None and "F5 answers again" in replayed.detail


def test_a_cancel_that_comes_before_its_reply_begins_still_counts(
    client: EngineClient, tiny_dir: Path
) -> None:
    client.send(load_of(tiny_dir, "llama-draft", ctx=32768))
    client.send(endless(1))
    client.send(endless(2))
    client.send(Cancel(2))
    client.send(Cancel(1))
    for reply in (1, 2):
        ended, _ = expect(client, Ended)
        assert (ended.reply, ended.finish_reason) == (reply, "cancelled")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_death_is_an_event_with_its_signal_and_keeps_what_came(
    client: EngineClient, tiny_dir: Path, number: signal.Signals
) -> None:
    load(client, tiny_dir, "deepseek4-support", ctx=32768)
    client.send(endless(7))
    expect(client, Step)
    assert client.pid is not None
    os.kill(client.pid, number)
    died, _ = expect(client, EngineDied)
    assert (died.reply, died.signal, died.exit_code) == (7, number.name, None)
    assert "Load the model again" in died.message
    assert not client.alive
    client.start()
    load(client, tiny_dir, "deepseek4-support")
    assert_answers(client, 8)


def test_a_native_abort_brings_llama_cpps_last_words(client: EngineClient, tmp_path: Path) -> None:
    """The log's tail comes along: here the sentence that a real abort prints on stderr."""
    assert client.pid is not None
    with client.log_path.open("a") as log:
        log.write("GGML_ASSERT(n_ubatch > n_keep_tail) failed\n")
    os.kill(client.pid, signal.SIGABRT)
    died, _ = expect(client, EngineDied)
    assert "GGML_ASSERT(n_ubatch > n_keep_tail) failed" in died.log_tail


def test_files_that_cannot_be_loaded_leave_the_process_alive(
    client: EngineClient, tiny_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "no.gguf").write_bytes(b"PK\x03\x04 this is a zip")
    for path in (tmp_path / "missing.gguf", tmp_path / "no.gguf", tmp_path):
        client.send(Load(str(path)))
        failed, _ = client.wait_for(LoadFailed, LONG)
        assert failed is not None
        assert str(path.name) in failed.message
    client.send(Generate(3, prompt="x"))
    ended, _ = expect(client, Ended)
    assert "No model is loaded" in ended.detail
    load(client, tiny_dir)


def test_a_support_file_that_does_not_fit_leaves_the_target_usable(
    client: EngineClient, tiny_dir: Path
) -> None:
    llama = tiny.build("llama", tiny_dir)
    support = tiny.build("deepseek4-support", tiny_dir, wrong_every=4)
    client.send(Load(str(llama), str(support), ctx=512, threads=1))
    loaded, _ = expect(client, Loaded)
    assert loaded.drafter is None
    assert "deepseek4" in loaded.off_reason
    assert_answers(client, 1)


def test_a_long_prompt_to_an_engine_that_does_not_read_keeps_nobody_waiting(
    client: EngineClient, tiny_dir: Path
) -> None:
    """Longer than a pipe holds, and sent from the thread of the screen."""
    load(client, tiny_dir)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGSTOP)
    prompt = "sun sea fog " * 100_000
    sender = threading.Thread(target=lambda: client.send(Generate(5, prompt=prompt)), daemon=True)
    sender.start()
    sender.join(120)
    assert not sender.is_alive()
    os.kill(client.pid, signal.SIGCONT)
    ended, _ = expect(client, Ended)
    assert (ended.reply, ended.finish_reason) == (5, "context")
    assert_answers(client, 6)


def test_closing_does_not_wait_for_an_engine_that_cannot_be_killed(
    client: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits for a network drive that is gone."""
    process = client._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(process, "kill", lambda: None)
        closer = threading.Thread(target=lambda: client.close(0.1), daemon=True)
        closer.start()
        closer.join(120)
        assert not closer.is_alive()
    assert client.alive


def test_close_leaves_no_process(tmp_path: Path, tiny_dir: Path) -> None:
    client = EngineClient(tmp_path / "engine.log")
    client.start()
    load(client, tiny_dir, ctx=32768)
    client.send(endless())
    expect(client, Step)
    client.close()
    assert not client.alive
    assert not [e for e in client.drain() if isinstance(e, EngineDied)]


def test_an_engine_whose_client_was_killed_leaves(tmp_path: Path, tiny_dir: Path) -> None:
    """The client is a process of its own here and dies by SIGKILL in the middle of a reply."""
    load = load_of(tiny_dir, "llama-draft", ctx=32768)
    (tmp_path / "load").write_bytes(encode(load)[4:])
    script = f"""
from pathlib import Path
from ds4chat.engine.child import Engine
from ds4chat.engine.client import EngineClient, Kind
from ds4chat.engine.events import *
from ds4chat.engine.wire import decode_command
client = EngineClient(Path({str(tmp_path / "engine.log")!r}))
client.start()
client.send(decode_command(Path({str(tmp_path / "load")!r}).read_bytes()))
client.wait_for(Loaded, {LONG})
client.send(Generate(1, prompt={END_NOW!r}, tuning=Tuning(depth=3)))
client.wait_for(Step, {LONG})
print(client.pid, flush=True)
client.wait_for(EngineDied, 600)
"""
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    engine = int(owner.stdout.readline())
    os.kill(engine, 0)
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline and _runs(engine):
        time.sleep(0.02)
    assert not _runs(engine)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_quit_ends_the_measuring_of_costs_at_once(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping the state may take most of the client's time, but measuring none of it."""
    read, write = os.pipe()
    commands = os.fdopen(write, "wb", buffering=0)
    waited: list[float] = []

    def measure(session: Session, interrupted: Callable[[], bool]) -> bool:
        assert not interrupted()
        begun = time.monotonic()
        commands.write(encode(Quit(seconds=1e6)))
        while not interrupted() and time.monotonic() < begun + LONG:
            time.sleep(0.001)
        waited.append(time.monotonic() - begun)
        return False

    monkeypatch.setattr(Session, "measure", measure)
    commands.write(encode(load_of(tiny_dir, "llama-draft")))
    Engine(os.fdopen(read, "rb"), io.BytesIO()).run()
    assert len(waited) == 1 and waited[0] < LONG


def test_garbage_on_the_command_pipe_ends_the_engine_with_a_log_line(
    client: EngineClient, tmp_path: Path
) -> None:
    assert client._process is not None
    assert client._process.stdin is not None
    client._process.stdin.write(b"\x00\x00\x00\x05hello")
    client._process.stdin.flush()
    died, _ = expect(client, EngineDied)
    assert any("the client sent" in line for line in died.log_tail)


def test_prints_of_the_engine_reach_the_log_and_not_the_protocol(
    client: EngineClient, tiny_dir: Path
) -> None:
    load(client, tiny_dir)
    assert "llama_model_loader" in client.log_path.read_text()
    assert client.log_path.stat().st_mode & 0o077 == 0
