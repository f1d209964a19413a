"""Measures a support model through ds4chat's own engine: acceptance by position and kind of text, and speed.

    python tools/evaluate_support.py quantise FOLDER             the demo's target as Q4_0, Q8_0 and F16
    python tools/evaluate_support.py acceptance MODEL [MODEL..]  at temperatures 0 and 0.7, depth 5
    python tools/evaluate_support.py speed MODEL [MODEL..]       against plain decoding, depths 1 to 5

"demo" as a MODEL is the demo's target; --mtp names another support model than the demo's. Tables are Markdown
on stdout, progress is on stderr. Acceptance does not depend on the machine's load. Speeds are taken in turn
with plain decoding on the same prompt, and only their ratio is printed.

A reply that runs into a verbatim loop is cut where the loop begins: inside a loop every draft is right, which
says nothing of the support model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ds4chat.engine.events import Ended, Event, Generate, Load, Message, Step, Tuning
from ds4chat.engine.llama import LlamaError
from ds4chat.engine.opening import LoadError, open_session
from ds4chat.engine.session import Control, Session
from ds4chat.engine.stats import Stats
from ds4chat.models.demo import demo_model, demo_support
from ds4chat.workloads import Workload, workloads

FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7}
"""llama.cpp's llama_ftype numbers."""

CONTEXT = 2048
SEED = 1
LONGEST_PERIOD = 64
SHORTEST_LOOP = 24
"""Tokens; and at least two periods."""


@dataclass
class Reply:
    """What one request came to."""

    stats: Stats = field(default_factory=Stats)
    ids: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Step):
            self.ids += [token.id for token in event.tokens]
        if isinstance(event, (Step, Ended)):
            self.events.append(event)
            self.stats.fold(event)


def answer(session: Session, prompt: str, tuning: Tuning, tokens: int) -> Reply:
    """One reply of a session that remembers nothing. Raises LlamaError when the engine failed."""
    session.reset()
    reply = Reply()
    request = Generate(1, messages=(Message("user", prompt),), tuning=tuning, max_tokens=tokens)
    session.generate(request, Control(tuning), reply)
    ended = reply.events[-1]
    assert isinstance(ended, Ended)
    if ended.finish_reason == "error":
        raise LlamaError(ended.detail)
    return reply


def loop_start(ids: Sequence[int]) -> int:
    """Index of the first token of a verbatim loop's second round; len(ids) where there is none."""
    first = len(ids)
    for period in range(1, min(LONGEST_PERIOD, len(ids) - 1) + 1):
        run = 0
        for at in range(period, len(ids)):
            run = run + 1 if ids[at] == ids[at - period] else 0
            if run >= max(2 * period, SHORTEST_LOOP):
                first = min(first, at - run + 1)
                break
    return first


@contextmanager
def opened(model: str, support: str, threads: int) -> Iterator[Session]:
    """A session, closed at the end. Raises LoadError."""
    path = str(demo_model()) if model == "demo" else model
    load = Load(path, support or str(demo_support()), ctx=CONTEXT, threads=threads)
    session, _ = open_session(load, lambda event: None, forgiving=False)
    try:
        yield session
    finally:
        session.close()


def note(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------ quantise


def quantise(folder: Path, types: Sequence[str]) -> None:
    """Write the demo's target in these types into ``folder``. Raises LlamaError when llama.cpp refuses."""
    import llama_cpp.llama_cpp as C

    from ds4chat.engine.llama import start

    start()
    source = demo_model()
    folder.mkdir(parents=True, exist_ok=True)
    for name in types:
        params = C.llama_model_quantize_default_params()
        params.ftype = FILE_TYPES[name]
        params.allow_requantize = True
        path = folder / f"SmolLM2-135M-Instruct.{name}.gguf"
        if C.llama_model_quantize(os.fsencode(source), os.fsencode(path), params):
            raise LlamaError(f"llama.cpp could not write {source} as {name} to {path}.")
        print(path)


# ------------------------------------------------------------------------------------ acceptance


@dataclass
class Acceptance:
    """Counts of one target at one temperature."""

    kinds: dict[str, Stats] = field(default_factory=dict)
    every: Stats = field(default_factory=Stats)
    replies: int = 0
    same: int = 0
    """Replies whose tokens are those of plain decoding."""
    cut: int = 0
    """Replies cut where a loop begins."""

    def add(self, kind: str, reply: Reply) -> None:
        """Count one reply."""
        stats = self.kinds.setdefault(kind, Stats())
        for event in reply.events:
            stats.fold(event)
            self.every.fold(event)
        self.replies += 1


def acceptance(
    session: Session, kinds: Sequence[Workload], prompts: int, tokens: int, depth: int, temp: float
) -> Acceptance:
    """Answer the first ``prompts`` prompts of every kind, each plainly and at this depth."""
    found = Acceptance()
    for kind in kinds:
        for prompt in kind.prompts[:prompts]:
            plain = answer(session, prompt, Tuning(depth=0, temp=temp, seed=SEED), tokens)
            length = max(loop_start(plain.ids), 8)
            found.cut += length < len(plain.ids)
            length = min(length, len(plain.ids))
            reply = answer(session, prompt, Tuning(depth=depth, temp=temp, seed=SEED), length)
            found.add(kind.name, reply)
            found.same += reply.ids == plain.ids[:length]
    return found


def rates(stats: Stats) -> str:
    """Conditional acceptance by position."""
    return " ".join(f"{p.rate:.3f}".lstrip("0") if p.rate is not None else "-" for p in stats.by_position)


def print_acceptance(args: argparse.Namespace) -> None:
    """The tables of the ``acceptance`` command."""
    kinds = workloads()
    names = [kind.name for kind in kinds]
    print(
        f"| target | temp | conditional acceptance at 1..{args.depth} | tokens per pass | judged at 1 | "
        "as plain | " + " | ".join(names) + " |"
    )
    print("| --- " * (6 + len(names)) + "|")
    for model in args.models:
        with opened(model, args.mtp, args.threads) as session:
            for temp in args.temps:
                found = acceptance(session, kinds, args.prompts, args.tokens, args.depth, temp)
                by_kind = [
                    f"{found.kinds[name].by_position[0].rate:.3f}, {found.kinds[name].tokens_per_step:.2f}"
                    for name in names
                ]
                print(
                    f"| {Path(model).stem} | {temp:g} | {rates(found.every)} | "
                    f"{found.every.tokens_per_step:.2f} | {found.every.by_position[0].judged} | "
                    f"{found.same} of {found.replies} | " + " | ".join(by_kind) + " |",
                    flush=True,
                )
                note(f"{model} at {temp:g}: {found.every.emitted} tokens, {found.cut} replies cut at a loop")


# ------------------------------------------------------------------------------------ speed


def print_speed(args: argparse.Namespace) -> None:
    """The table of the ``speed`` command: ratios to plain decoding, medians and quartiles over prompts."""
    depths = range(1, args.depth + 1)
    print("| target | " + " | ".join(f"depth {d}" for d in depths) + " |")
    print("| --- " * (1 + len(depths)) + "|")
    for model in args.models:
        ratios: dict[int, list[float]] = {depth: [] for depth in depths}
        counts = {depth: Stats() for depth in depths}
        with opened(model, args.mtp, args.threads) as session:
            answer(session, workloads()[0].prompts[0], Tuning(depth=args.depth), 16)
            for kind in workloads():
                for prompt in kind.prompts[: args.prompts]:
                    _speed_of(session, prompt, args.tokens, ratios, counts)
        cells = []
        for depth in depths:
            low, middle, high = statistics.quantiles(ratios[depth], n=4)
            cells.append(f"{middle:.2f} ({low:.2f}-{high:.2f}), {counts[depth].tokens_per_step:.2f} a pass")
        print(f"| {Path(model).stem} | " + " | ".join(cells) + " |", flush=True)


def _speed_of(
    session: Session, prompt: str, tokens: int, ratios: dict[int, list[float]], counts: dict[int, Stats]
) -> None:
    """Put one prompt at every depth, and plainly before the first and after the last: the mean of the two
    is the baseline, so that a drift of the machine cancels."""
    before = answer(session, prompt, Tuning(depth=0), tokens)
    replies = {depth: answer(session, prompt, Tuning(depth=depth), tokens) for depth in ratios}
    after = answer(session, prompt, Tuning(depth=0), tokens)
    plain = statistics.mean(ms_per_token(reply) for reply in (before, after))
    for depth, reply in replies.items():
        ratios[depth].append(plain / ms_per_token(reply))
        for event in reply.events:
            counts[depth].fold(event)


def ms_per_token(reply: Reply) -> float:
    """Milliseconds of decoding for each emitted token."""
    return reply.stats.decode_ms / max(reply.stats.emitted, 1)


# ------------------------------------------------------------------------------------ command line


def main() -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog=(__doc__ or "").split("\n\n", 1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("quantise", help="write the demo's target in other quantisations")
    one.add_argument("folder", type=Path)
    one.add_argument("--types", nargs="+", choices=FILE_TYPES, default=list(FILE_TYPES))
    for name, prompts, tokens in (("acceptance", 6, 128), ("speed", 2, 64)):
        one = commands.add_parser(name)
        one.add_argument("models", nargs="+", metavar="MODEL", help='GGUF, or "demo"')
        one.add_argument("--mtp", default="", metavar="FILE", help="support GGUF; the demo's own if left out")
        one.add_argument("--prompts", type=int, default=prompts, help="prompts of each kind of text")
        one.add_argument("--tokens", type=int, default=tokens, help="most tokens of a reply")
        one.add_argument("--depth", type=int, default=5)
        one.add_argument("--temps", type=float, nargs="+", default=[0.0, 0.7])
        one.add_argument("-t", "--threads", type=int, default=0)
    args = parser.parse_args()
    try:
        if args.command == "quantise":
            quantise(args.folder, args.types)
        elif args.command == "acceptance":
            print_acceptance(args)
        else:
            print_speed(args)
    except (LoadError, LlamaError, OSError) as error:
        print(f"evaluate_support: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
