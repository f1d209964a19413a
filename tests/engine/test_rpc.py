"""The engine over RPC servers: asked before llama.cpp sees them, and the same ids and counters as without."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kits.engine import load_of

from ds4chat.engine import llama, rpc
from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Loaded, LoadFailed
from ds4chat.engine.rpc import RpcError, check, endpoints


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("", ()),
        ("box", ("box:50052",)),
        ("a:1, b:2,a:1", ("a:1", "b:2")),
        ("[::1]:9", ("[::1]:9",)),
    ],
)
def test_addresses_are_host_and_port_with_commas_between(setting: str, found: tuple[str, ...]) -> None:
    assert endpoints(setting) == found


@pytest.mark.parametrize("setting", ["a:x", "a:0", "a:65536", ":1", "a:"])
def test_what_is_no_address_is_refused(setting: str) -> None:
    with pytest.raises(RpcError, match="is not an address"):
        endpoints(setting)


def answering(data: bytes) -> Iterator[str]:
    """A port that answers a connection with this, or with nothing for b"silent"."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(64)
                    if data == b"silent":
                        while connection.recv(64):  # until the client leaves
                            pass
                    else:
                        connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


HELLO = (28).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"silent", "does not answer"),
        (b"SSH-2.0-OpenSSH\r\n", "no RPC server of llama.cpp"),
        (b"", "no RPC server of llama.cpp"),
        (HELLO + bytes([6, 0, 0, 0]) + bytes(24), "speaks version 6 of the protocol"),
    ],
)
def test_a_server_that_llama_cpp_would_abort_at_is_named(
    data: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "CONNECT_S", 0.3 if data == b"silent" else 60.0)
    for server in answering(data):
        with pytest.raises(RpcError, match=says) as raised:
            check([server])
        assert server in str(raised.value)


def test_a_server_of_this_version_passes_and_one_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc, "CONNECT_S", 60.0)
    for server in answering(HELLO + bytes([rpc.PROTOCOL, 0, 0, 0]) + bytes(24)):
        check([server])
    with pytest.raises(RpcError, match=r"127\.0\.0\.1:9 cannot be reached: Connection refused"):
        check(["127.0.0.1:9"])


def test_an_engine_process_survives_a_server_that_is_not_there(tmp_path: Path) -> None:
    client = EngineClient(tmp_path / "log")
    try:
        client.start()
        client.send(replace(load_of(tmp_path, "eagle3"), rpc=("127.0.0.1:9",)))
        answer, seen = client.wait_for(Loaded, 60)
        assert answer is None and isinstance(seen[-1], LoadFailed)
        assert "127.0.0.1:9 cannot be reached" in seen[-1].message
        client.send(load_of(tmp_path, "eagle3"))
        assert isinstance(client.wait_for(Loaded, 60)[0], Loaded)
    finally:
        client.close()


def test_a_llama_cpp_without_rpc_says_which_command_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "_registry_by_name", lambda name: None)
    monkeypatch.delenv(llama.RPC_LIBRARY, raising=False)
    with pytest.raises(llama.LlamaError, match=r"built without RPC.*-DGGML_RPC=on.* pip install"):
        llama.add_rpc_servers(["127.0.0.1:1"])
