"""``ds4chat bench``: whether MTP pays on this machine with this model, on which text, and at which depth; or
how fast a server is."""

from __future__ import annotations

from ds4chat.commands.arguments import Parser, add_hub_model, add_settings
from ds4chat.commands.options import BenchOptions
from ds4chat.commands.running import read_options
from ds4chat.settings.schema import Settings


def parser() -> Parser:
    """The parser of the command."""
    made = Parser(
        prog="ds4chat bench",
        usage="ds4chat bench -m FILE [--mtp [FILE]] [options]",
        description="Measure plain decoding, every depth and auto on several kinds of text, and say\n"
        "whether MTP pays on this machine and what to set. A reply has at most 128 tokens\n"
        "(64 with --quick), or as many as -n says; where time is short, fewer.",
    )
    bench = made.add_argument_group("Bench")
    bench.add_argument("--json", action="store_true", help="The result as JSON on stdout.")
    bench.add_argument(
        "--save",
        nargs="?",
        const="",
        metavar="FILE",
        help="Save the result as JSON to FILE, or without FILE into the data folder.",
    )
    bench.add_argument("--quick", action="store_true", help="A rough answer in a short time.")
    bench.add_argument("--plot", action="store_true", help="Draw the result with block characters, too.")
    bench.add_argument(
        "--compare",
        metavar="URL",
        default="",
        help="Measure a llama.cpp server that runs the same model alongside.",
    )
    add_hub_model(made)
    add_settings(made)
    return made


def main(argv: list[str]) -> int:
    """Carry out ``ds4chat bench``; the exit code. Raises UsageError."""
    given, loaded = read_options(parser(), argv)
    return run(loaded.settings, BenchOptions(given.json, given.save, given.quick, given.plot, given.compare))


def run(settings: Settings, options: BenchOptions) -> int:
    """Measure and report; the exit code. Raises UsageError."""
    if settings.server:
        from ds4chat.commands.bench.remote import run as run_remote

        return run_remote(settings, options)
    import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
    from ds4chat.commands.bench.command import run as run_here

    return run_here(settings, options)
