"""The engine over two real RPC servers: the same ids and counters as without them.

Collected only where DS4CHAT_RPC_LIBRARY names the backend, which tools/build_rpc.py builds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kits.engine import END_NOW, load_of, opened

from ds4chat.engine import rpc
from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Ended, EngineDied, Generate, Loaded, Step, Tuning


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[list[str], list[subprocess.Popen[bytes]]]]:
    """Addresses of two RPC servers on loopback, and their processes."""
    found, processes = [], []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "ds4chat", "rpc-server", "--port", str(port), "--threads", "1"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        found.append(f"127.0.0.1:{port}")
    deadline = time.monotonic() + 60
    while rpc.lost(found) and time.monotonic() < deadline:
        time.sleep(0.05)
    yield found, processes
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


CASES = {
    "eagle3": ("eagle3", {"depth": 3}, {}),
    "nextn": ("deepseek4-nextn", {"depth": 3}, {}),
    "recurrent nextn": ("qwen35-nextn", {"depth": 2}, {}),
    "lookup": ("llama-draft", {"depth": 4}, {"support": "", "lookup": True}),
    "margin": ("eagle3", {"depth": 3, "margin": 0.0}, {}),
    "strict": ("eagle3", {"depth": 3, "strict": True}, {"strict": True}),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_ids_and_counters_are_those_of_the_engine_here(
    tmp_path: Path, servers: tuple[list[str], list[subprocess.Popen[bytes]]], case: str, count: int
) -> None:
    name, tuning, more = CASES[case]
    load = replace(load_of(tmp_path, name), **more)
    with opened(load) as bench:
        here = bench.ask(END_NOW, 40, **tuning)
        assert bench.loaded.device == "CPU"
    with opened(replace(load, rpc=tuple(servers[0][:count]))) as bench:
        there = bench.ask(END_NOW, 40, **tuning)
        assert bench.loaded.device == " + ".join(servers[0][:count])
    assert there.ids == here.ids
    assert (there.counts, there.by_position) == (here.counts, here.by_position)
    assert there.stats.lossy == here.stats.lossy
    assert bool(here.stats.lossy) == (case == "margin")
    assert here.stats.accepted > 0


def test_a_server_that_is_lost_is_named_and_the_chat_goes_on(
    tmp_path: Path, servers: tuple[list[str], list[subprocess.Popen[bytes]]]
) -> None:
    found, processes = servers
    client = EngineClient(tmp_path / "log")
    try:
        client.start()
        client.send(replace(load_of(tmp_path, "eagle3"), rpc=tuple(found)))
        assert isinstance(client.wait_for(Loaded, 60)[0], Loaded)
        client.send(Generate(1, prompt=END_NOW, tuning=Tuning(), max_tokens=400, ignore_eos=True))
        assert client.wait_for(Step, 60)[0]
        os.killpg(processes[1].pid, 9)
        processes[1].wait()
        died = client.wait_for(Ended, 60)[1][-1]
        assert isinstance(died, EngineDied), died
        assert f"the RPC server {found[1]} was lost" in died.message
        client.start()
        client.send(load_of(tmp_path, "eagle3"))
        assert isinstance(client.wait_for(Loaded, 60)[0], Loaded)
    finally:
        client.close()
