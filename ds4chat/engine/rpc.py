"""Other machines' memory and compute for the engine here, through llama.cpp's RPC backend.

llama.cpp ends the process where an RPC server cannot be reached or speaks another version, so each is checked
here first. The protocol has neither encryption nor a password.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

PROTOCOL = 7
"""Major version of the protocol in the llama.cpp that pyproject.toml pins, the only one that it accepts."""
PORT = 50052
CONNECT_S = 3.0
UNPROTECTED = (
    "llama.cpp's RPC has no encryption and no password: whoever reaches its port can read the conversation "
    "and use the machine. Keep it to a network of your own, or to a tunnel."
)

_HELLO = 14
_CAPABILITIES = 24  # bytes, all zero: nothing beyond TCP


class RpcError(Exception):
    """An RPC server cannot be used; the text is a sentence that names it."""


def endpoints(setting: str) -> tuple[str, ...]:
    """The addresses in a setting, ``host:port`` each, with the default port where none is given. Raises
    RpcError."""
    found = []
    for word in setting.replace(",", " ").split():
        host, colon, port = word.rpartition(":")
        if not colon:
            host, port = word, str(PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise RpcError(
                f"--rpc {word} is not an address: it takes host:port, several with commas between."
            )
        found.append(f"{host}:{port}")
    return tuple(dict.fromkeys(found))


def check(servers: Sequence[str]) -> None:
    """Make sure that each is an RPC server of this version that answers now. Raises RpcError."""
    for server in servers:
        host, _, port = server.rpartition(":")
        start = (
            f"Start it there with ds4chat rpc-server --host ADDRESS --port {port}, or leave it out of --rpc."
        )
        try:
            with (
                socket.create_connection((host, int(port)), CONNECT_S) as sock,
                sock.makefile("rb") as stream,
            ):
                sock.sendall(struct.pack("<BQ", _HELLO, _CAPABILITIES) + bytes(_CAPABILITIES))
                answer = stream.read(8 + 3)
        except TimeoutError:
            raise RpcError(
                f"The RPC server {server} does not answer: it may serve somebody else, one at a time, or "
                f"hang. {start}"
            ) from None
        except OSError as error:
            raise RpcError(
                f"The RPC server {server} cannot be reached: {error.strerror or error}. {start}"
            ) from None
        size = int.from_bytes(answer[:8], "little")
        if len(answer) < 11 or size != 4 + _CAPABILITIES:
            raise RpcError(f"What answers at {server} is no RPC server of llama.cpp. {start}")
        if answer[8] != PROTOCOL:
            raise RpcError(
                f"The RPC server {server} speaks version {answer[8]} of the protocol, and the llama.cpp "
                f"here {PROTOCOL}. Run the same version of ds4chat on both."
            )


def lost(servers: Sequence[str]) -> list[str]:
    """Those that refuse a connection now."""
    gone = []
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except TimeoutError:
            continue
        except OSError:
            gone.append(server)
    return gone
