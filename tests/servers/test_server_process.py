"""Servers through whole processes: the engine's and the one shot's, without llama.cpp and without a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kits.json_schema import validate
from servers.replay import recorded
from servers.scripted import Connection, Received, answers, llama, openai, says, scripted, without

from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import (
    Cancel,
    Ended,
    EngineDied,
    Generate,
    Load,
    Loaded,
    LoadFailed,
    Message,
    ServerAddress,
    Step,
)

LONG = 120.0
"""Seconds to wait for what must come; only a fault makes a test wait that long."""
REQUEST = Generate(1, messages=(Message("user", "hi"),))


@pytest.fixture
def without_llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes in which llama_cpp and numpy cannot be imported."""
    for name in ("llama_cpp", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not needed here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


WHOLE = answers(raw=recorded("eagle3.completion"))


@pytest.mark.usefixtures("without_llama")
def test_the_engine_process_answers_over_a_server(tmp_path: Path) -> None:
    client = EngineClient(tmp_path / "engine.log")
    try:
        with scripted(llama(WHOLE)) as server:
            client.start()
            client.send(Load("", server=ServerAddress(server.url)))
            loaded, _ = client.wait_for(Loaded, LONG)
            assert isinstance(loaded, Loaded) and loaded.server is not None
            assert (loaded.server.kind, loaded.n_ctx) == ("llama-server", 1024)
            client.send(REQUEST)
            ended, events = client.wait_for(Ended, LONG)
        assert isinstance(ended, Ended) and ended.finish_reason == "length"
        assert sum(len(event.tokens) for event in events if isinstance(event, Step)) == 40
        client.send(Load("", server=ServerAddress(server.url)))
        failed, seen = client.wait_for(Loaded, LONG)
        assert failed is None and isinstance(seen[-1], LoadFailed)
        assert "No server answers" in seen[-1].message
    finally:
        client.close()


@pytest.mark.usefixtures("without_llama")
def test_a_cancel_or_a_killed_engine_ends_the_servers_work_and_nothing_else(tmp_path: Path) -> None:
    closed = [threading.Event(), threading.Event()]
    replies = iter(closed)

    def endless(received: Received, connection: Connection) -> None:
        over = next(replies)
        connection.begin()
        connection.chunk(recorded("eagle3.completion")[:6000])
        if connection.closed(LONG):
            over.set()

    client = EngineClient(tmp_path / "engine.log")
    try:
        with scripted(llama(endless)) as server:
            client.start()
            client.send(Load("", server=ServerAddress(server.url)))
            client.wait_for(Loaded, LONG)
            client.send(REQUEST)
            client.wait_for(Step, LONG)
            client.send(Cancel(1))
            ended, _ = client.wait_for(Ended, LONG)
            assert isinstance(ended, Ended) and ended.finish_reason == "cancelled"
            assert closed[0].wait(LONG)
            client.send(Generate(2, messages=REQUEST.messages))
            client.wait_for(Step, LONG)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            died, _ = client.wait_for(EngineDied, LONG)
            assert died is not None and died.signal == "SIGKILL"
            assert closed[1].wait(LONG)
    finally:
        client.close()


def one_shot(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ds4chat", *argv],
        capture_output=True,
        text=True,
        timeout=LONG,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.usefixtures("without_llama")
def test_the_one_shot_and_its_json_over_a_server() -> None:
    with scripted(llama(WHOLE)) as server:
        text = one_shot("--server", server.url, "-p", "hi", "-n", "40")
        told = one_shot("--server", server.url, "-p", "hi", "-n", "40", "--json", "--top-k", "3")
        asked = [request.json() for request in server.seen("/completion")]
    assert text.returncode == 0 and text.stdout.startswith("This is a classic example of"), text.stderr
    answer = json.loads(told.stdout)
    validate(answer, "AnswerDocument")
    assert [token["origin"] for token in answer["tokens"][:6]] == [
        "plain",
        *["accepted"] * 3,
        "bonus",
        "accepted",
    ]
    assert (answer["stats"]["drafted"], answer["stats"]["accepted"]) == (42, 24)
    assert answer["settings"]["drafter"] == "draft-eagle3"
    assert answer["settings"]["temp"] is None
    assert answer["server"]["tells"] == "exact"
    # What nobody set is the server's own.
    assert [
        {name for name in body if name in ("temperature", "top_k", "top_p", "seed")} for body in asked
    ] == [
        set(),
        {"top_k"},
    ]


@pytest.mark.usefixtures("without_llama")
def test_what_a_server_refuses_is_null_in_json_and_said_on_stderr() -> None:
    with scripted(openai(without("stream_options", "temperature"))) as server:
        done = one_shot("--server", server.url, "-p", "hi", "--json", "--temp", "0.5", "--top-p", "0.5")
    answer = json.loads(done.stdout)
    validate(answer, "AnswerDocument")
    assert (answer["text"], answer["prompt_tokens"], answer["settings"]["temp"]) == ("one two", None, None)
    assert done.stderr.count("refuses stream_options and temperature") == 1


def test_many_prompts_are_answered_in_turn(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    with scripted(openai(says("fine"))) as server:
        done = one_shot("--server", server.url, "--prompts-file", str(tmp_path / "p.txt"))
        prompts = [r.json()["messages"][-1]["content"] for r in server.seen("/v1/chat/completions")]
    assert (done.returncode, done.stdout) == (0, "fine\nfine\n")
    assert prompts == ["one", "two"]


def test_a_server_is_named_in_the_settings_and_its_key_is_never_shown(tmp_path: Path) -> None:
    key = tmp_path / "box.key"
    key.write_text("sk-very-secret\n")
    key.chmod(0o600)
    with scripted(openai(answers({"error": {"message": "no"}}, 401))) as server:
        config = tmp_path / "c.toml"
        config.write_text(f'[servers.box]\nurl = "{server.url}"\nkey-file = "box.key"\nmodel = "special"\n')
        done = one_shot(
            "--config", str(config), "--server", "box", "-p", "hi", "--log-file", str(tmp_path / "log")
        )
        sent = server.seen("/v1/chat/completions")[0]
    assert sent.headers["authorization"] == "Bearer sk-very-secret"
    assert sent.json()["model"] == "special"
    assert done.returncode == 1 and "refused the API key" in done.stderr
    kept = "".join(file.read_text("utf-8", "replace") for file in tmp_path.iterdir() if file != key)
    assert "sk-very" not in done.stdout + done.stderr + kept


def test_inspect_says_what_a_server_is(capsys: pytest.CaptureFixture[str]) -> None:
    from ds4chat.commands.main import main

    with scripted(llama(WHOLE)) as server:
        assert main(["inspect", "--server", server.url]) == 0
        text = capsys.readouterr().out
        assert main(["inspect", "--server", server.url, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
    assert "llama-server" in text and "every token's origin" in text
    assert told["per_request"] == ["temp", "top-k", "top-p", "min-p", "repeat-penalty", "seed"]
    assert set(told["fixed"]) == {"mtp-draft", "mtp-margin", "mtp-gate", "mtp-strict"}
    assert (told["context"], told["speculates"], told["key"], told["encrypted"]) == (1024, True, False, False)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--server", "http://x", "-m", "a.gguf", "-p", "x"], "leave out -m and --demo, or --server"),
        (["check", "--server", "http://x"], "check takes a model with -m FILE"),
        (["inspect", "a.gguf", "--server", "http://x"], "leave out FILE and --demo"),
        (["--server", "box", "-p", "x"], "no server box in [servers]"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ds4chat.commands.main import main

    assert main(argv) in (1, 2)
    assert says in capsys.readouterr().err
