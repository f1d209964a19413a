"""The command ``rpc-server``: lend this machine's memory and compute to a ds4chat elsewhere."""

from __future__ import annotations

from ds4chat.commands.arguments import Parser, UsageError, checked
from ds4chat.commands.running import RUN_ERROR, say
from ds4chat.settings.schema import BY_KEY, Option

RPC_PORT = Option("port", "int", 50052, "The port of rpc-server.", "", low=1, high=65535)


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="ds4chat rpc-server",
        usage="ds4chat rpc-server [--host ADDRESS] [--port N] [--threads N]",
        description="Lend this machine's memory and compute to a ds4chat elsewhere (--rpc there), until\n"
        "Ctrl-C. It serves one client at a time, without encryption and without a password.",
    )
    made.general.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen [127.0.0.1]."
    )
    made.general.add_argument(
        "--port", metavar="N", type=checked(RPC_PORT), help=f"The port [{RPC_PORT.default}]."
    )
    made.general.add_argument(
        "--threads", metavar="N", type=checked(BY_KEY["threads"]), help="CPU threads [all]."
    )
    return made


def main(argv: list[str]) -> int:
    """Carry out ``ds4chat rpc-server``; the exit code. Raises UsageError."""
    given, words = parser().read(argv)
    if words:
        raise UsageError(f'ds4chat rpc-server takes options only, not "{words[0]}".')
    return run(given.host, given.port or RPC_PORT.default, given.threads or 0)


def run(host: str, port: int, threads: int) -> int:
    """Serve until Ctrl-C; the exit code: 1 if the port is in use. Raises LlamaError if this llama.cpp has no
    RPC."""
    import ds4chat.engine.llama as llama
    from ds4chat.engine.machine import cores
    from ds4chat.engine.rpc import UNPROTECTED

    say(UNPROTECTED)
    llama.serve_rpc(f"{host}:{port}", threads or cores())
    say(f"{host}:{port} cannot be served: the port may be in use. Name another with --port.")
    return RUN_ERROR
