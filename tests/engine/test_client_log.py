"""The engine's log cannot be written: the engine runs without one, and says so once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kits.engine import END_NOW, load_of

from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Ended, EngineDied, Generate, Loaded, Notice

LONG = 120.0


@pytest.fixture
def client(tmp_path: Path) -> Iterator[EngineClient]:
    client = EngineClient(tmp_path / "log" / "engine.log")
    yield client
    client.close()


def a_folder_in_its_place(log: Path) -> None:
    log.unlink()
    log.mkdir()


def a_file_in_its_folders_place(log: Path) -> None:
    log.unlink()
    log.parent.rmdir()
    log.parent.write_text("in the way")


def kill(client: EngineClient) -> EngineDied:
    assert client.pid is not None
    os.kill(client.pid, signal.SIGABRT)
    died, _ = client.wait_for(EngineDied, LONG)
    assert died is not None
    return died


def warnings(client: EngineClient) -> list[Notice]:
    """What was said by the time that the engine answered a command."""
    client.send(Generate(9, prompt="x"))
    _, seen = client.wait_for(Ended, LONG)
    return [e for e in seen if isinstance(e, Notice)]


@pytest.mark.parametrize("spoil", [a_folder_in_its_place, a_file_in_its_folders_place])
def test_a_log_that_becomes_unwritable_costs_the_log_alone(
    client: EngineClient, tiny_dir: Path, spoil: Callable[[Path], None]
) -> None:
    client.start()
    assert "the log has llama.cpp's last words" in kill(client).message
    spoil(client.log_path)
    client.start()
    (said,) = warnings(client)
    assert said.level == "warning"
    assert str(client.log_path) in said.message
    assert "runs without one" in said.message and "--log-file" in said.message
    died = kill(client)
    assert "log" not in died.message
    assert died.message.endswith("Load the model again to go on.")
    assert died.log_tail == ()
    client.start()
    assert warnings(client) == []  # once is enough
    client.send(load_of(tiny_dir, "llama-draft"))
    assert client.wait_for(Loaded, LONG)[0]
    client.send(Generate(1, prompt=END_NOW, max_tokens=3))
    assert client.wait_for(Ended, LONG)[0]


def test_a_log_that_can_be_written_again_is_used_again(client: EngineClient, tmp_path: Path) -> None:
    client.log_path.mkdir(parents=True)
    client.start()
    assert len(warnings(client)) == 1
    kill(client)
    client.log_path.rmdir()
    client.start()
    assert warnings(client) == []
    client.send(load_of(tmp_path, "llama-draft", ctx=512))
    assert client.wait_for(Loaded, LONG)[0]
    assert "llama_model_loader" in client.log_path.read_text()
    assert client.log_path.stat().st_mode & 0o077 == 0
