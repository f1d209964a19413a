"""The command ``rpc-server``: lend this machine's memory and compute to a ds4chat elsewhere."""

from __future__ import annotations

import sys


def run(host: str, port: int, threads: int) -> int:
    """Serve until Ctrl-C; the exit code: 1 where this llama.cpp has no RPC or the port is taken."""
    import ds4chat.engine.llama as llama
    from ds4chat.engine.measure import cores
    from ds4chat.engine.rpc import UNPROTECTED

    print(f"ds4chat: {UNPROTECTED}", file=sys.stderr)
    try:
        llama.serve_rpc(f"{host}:{port}", threads or cores())
    except llama.LlamaError as error:
        print(f"ds4chat: {error}", file=sys.stderr)
        return 1
    print(
        f"ds4chat: {host}:{port} cannot be served: the port may be taken. Name another with --port.",
        file=sys.stderr,
    )
    return 1
