"""Measures a support model through ds4chat's own engine: acceptance by position and kind of text, and speed.

    python tools/evaluate_support.py quantise FOLDER             the demo's target as Q4_0, Q8_0 and F16
    python tools/evaluate_support.py acceptance MODEL [MODEL..]  at temperatures 0 and 0.7, depth 5
    python tools/evaluate_support.py speed MODEL [MODEL..]       against plain decoding, depths 1 to 5
    python tools/evaluate_support.py whatif MODEL                predicted acceptance against reruns
    python tools/evaluate_support.py window MODEL                after rests, by the tokens caught up with

"demo" as a MODEL is the demo's target; --mtp names another support model than the demo's. Tables are Markdown
on stdout, progress is on stderr. Acceptance does not depend on the machine's load. Speeds are taken in turn
with plain decoding on the same prompt, and only their ratio is printed.

A reply that runs into a verbatim loop is cut where the loop begins: inside a loop every draft is right, which
says nothing about the support model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import ds4chat.engine.llama  # noqa: F401  first, so that llama.cpp is loaded before numpy
from ds4chat.analysis.rows import JudgedRows, rows_from_steps
from ds4chat.analysis.whatif import what_if
from ds4chat.commands.bench.running import reply_of
from ds4chat.commands.bench.workloads import Workload, workloads
from ds4chat.engine.control import Control
from ds4chat.engine.drafters import eagle3, hidden
from ds4chat.engine.events import Ended, Event, Generate, Load, Message, Step, Tuning
from ds4chat.engine.llama import LlamaError
from ds4chat.engine.opening import open_session
from ds4chat.engine.session import Session
from ds4chat.engine.stats import Stats
from ds4chat.errors import UserFacingError
from ds4chat.models.demo import demo_model, demo_support

FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7}
"""llama.cpp's llama_ftype numbers."""

CONTEXT = 2048
SEED = 1
LONGEST_PERIOD = 64
SHORTEST_LOOP = 24
"""Tokens; and at least two periods."""


class Reply(NamedTuple):
    """One reply."""

    steps: list[Step]
    end: Ended

    @property
    def ids(self) -> list[int]:
        """The tokens."""
        return [token.id for step in self.steps for token in step.tokens]

    def count_in(self, *totals: Stats) -> None:
        """Add the reply to these totals."""
        for stats in totals:
            for step in self.steps:
                stats.fold(step)
            stats.fold(self.end)


def answer(session: Session, prompt: str, tuning: Tuning, tokens: int) -> Reply:
    """One reply of a session that remembers nothing. Raises BenchError when the engine fails."""
    session.reset()
    request = Generate(1, messages=(Message("user", prompt),), tuning=tuning, max_tokens=tokens)
    replied = reply_of(session, request, Control(tuning), lambda event: None)
    assert replied is not None  # nobody stopped it
    return Reply(*replied)


def length_before_loop(ids: Sequence[int]) -> int:
    """Tokens before the second round of a verbatim loop, but at least 8; all of them if there is no loop."""
    first = len(ids)
    for period in range(1, min(LONGEST_PERIOD, len(ids) - 1) + 1):
        run = 0
        for at in range(period, len(ids)):
            run = run + 1 if ids[at] == ids[at - period] else 0
            if run >= max(2 * period, SHORTEST_LOOP):
                first = min(first, at - run + 1)
                break
    return min(max(first, 8), len(ids))


@contextmanager
def opened(model: str, support: str, threads: int, window: int | None = None) -> Iterator[Session]:
    """A session, closed at the end. Raises LoadError.

    window: most tokens that a drafter of hidden rows catches up with; 0: all; None: the drafter's own."""
    path = str(demo_model()) if model == "demo" else model
    load = Load(path, support or str(demo_support()), ctx=CONTEXT, threads=threads)
    if window:
        hidden.WINDOW, hidden.HELD = window, window + 1
        hidden.FLUSH = eagle3.FLUSH = min(window, hidden.FLUSH)
    session, _ = open_session(load, lambda event: None, forgiving=False)
    if window == 0:
        drafter, observe = session.caches.drafter, session.caches.drafter.observe

        def reading(tokens: Sequence[int], pos: int, keep: int) -> None:
            observe(tokens, pos, keep)
            drafter._flush(drafter._known)

        drafter.observe = reading
    try:
        yield session
    finally:
        session.close()


def note(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------ quantise


def quantise(args: argparse.Namespace) -> None:
    """The ``quantise`` command. Raises LlamaError when llama.cpp refuses."""
    import llama_cpp.llama_cpp as C

    from ds4chat.engine.llama import start

    start()
    source = demo_model()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.types:
        params = C.llama_model_quantize_default_params()
        params.ftype = FILE_TYPES[name]
        params.allow_requantize = True
        path = args.folder / f"SmolLM2-135M-Instruct.{name}.gguf"
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


def acceptance(
    session: Session, kinds: Sequence[Workload], prompts: int, tokens: int, depth: int, temp: float
) -> Acceptance:
    """Answer the first ``prompts`` prompts of every kind, each plainly and at this depth."""
    found = Acceptance()
    for kind in kinds:
        for prompt in kind.prompts[:prompts]:
            plain = answer(session, prompt, Tuning(depth=0, temp=temp, seed=SEED), tokens).ids
            length = length_before_loop(plain)
            found.cut += length < len(plain)
            reply = answer(session, prompt, Tuning(depth=depth, temp=temp, seed=SEED), length)
            reply.count_in(found.kinds.setdefault(kind.name, Stats()), found.every)
            found.replies += 1
            found.same += reply.ids == plain[:length]
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
        reply.count_in(counts[depth])


def ms_per_token(reply: Reply) -> float:
    """Milliseconds of decoding for each emitted token."""
    return reply.end.decode_ms / max(len(reply.ids), 1)


# ------------------------------------------------------------------------------------ window

WINDOWS = (32, 64, 128, 256, 0)
"""Tokens that the drafter catches up with after a rest; 0: all."""
REST = 32
"""Tokens without a draft, then as many with drafts, and so on."""


def print_window(args: argparse.Namespace) -> None:
    """The table of the ``window`` command: each kind's prompts are one conversation, in which drafting rests
    every now and then, so that the context is many times the window."""
    print("| target | caught up with | conditional acceptance at 1.. | tokens per pass | judged at 1 |")
    print("| --- " * 5 + "|")
    for model in args.models:
        for window in WINDOWS:
            stats = Stats()
            with opened(model, args.mtp, args.threads, window) as session:
                for kind in workloads():
                    _with_rests(session, kind.prompts[: args.prompts], args, stats, forgets=window > 0)
            print(
                f"| {Path(model).stem} | {window or 'all'} | {rates(stats)} | {stats.tokens_per_step:.3f} | "
                f"{stats.by_position[0].judged} |",
                flush=True,
            )


def _with_rests(
    session: Session, prompts: Sequence[str], args: argparse.Namespace, stats: Stats, *, forgets: bool
) -> None:
    """Count the steps with drafts of one conversation. forgets: the rests count as longer than the window."""
    drafting = Tuning(depth=args.depth, temp=args.temp, seed=SEED)
    resting = replace(drafting, depth=0)
    said: list[Message] = []
    session.reset()
    for prompt in prompts:
        said.append(Message("user", prompt))
        control, ids, text = Control(resting), 0, ""

        def take(event: Event, control: Control = control) -> None:
            nonlocal ids, text
            if isinstance(event, Step):
                ids += len(event.tokens)
                text += "".join(token.text for token in event.tokens)
                if event.drafted:
                    stats.fold(event)
                tuning = drafting if ids // REST % 2 else resting
                if tuning is drafting is not control.tuning and forgets:
                    session.caches.drafter._context.clear()  # as after a rest longer than the window
                control.tuning = tuning

        session.generate(Generate(1, tuple(said), tuning=resting, max_tokens=args.tokens), control, take)
        said.append(Message("assistant", text))
    note(f"{sum(len(message.content) for message in said)} characters, {stats.by_position[0].judged} judged")


# ------------------------------------------------------------------------------------ what-if

RERUNS = ((3, 0.0), (2, 0.0), (1, 0.0), (4, 1.0), (4, 2.0), (4, 3.0), (2, 1.0), (2, 2.0), (1, 1.0))
"""(depth, gate) of the reruns that the recorded run is to predict."""


def steps_at(
    session: Session, prompts: Sequence[str], lengths: Sequence[int], tuning: Tuning
) -> list[list[Step]]:
    """The steps of every prompt's reply, numbered as replies in turn."""
    replies = []
    for number, (prompt, length) in enumerate(zip(prompts, lengths)):
        steps = answer(session, prompt, tuning, length).steps
        replies.append([replace(step, reply=number) for step in steps])
    return replies


def rows_of(replies: Sequence[Sequence[Step]]) -> JudgedRows:
    """All replies' rows together."""
    return rows_from_steps(step for steps in replies for step in steps)


def jackknife(miss: Callable[[Sequence[int]], float], count: int) -> float:
    """Standard error of a figure of ``count`` prompts, of which ``miss`` gives the value for any subset."""
    without = [miss([i for i in range(count) if i != left]) for left in range(count)]
    mean = statistics.fmean(without)
    return math.sqrt((count - 1) / count * sum((value - mean) ** 2 for value in without))


def print_what_if(args: argparse.Namespace) -> None:
    """The table of the ``whatif`` command; with --save also the record and the reruns' counts as JSON."""
    prompts = [prompt for kind in workloads() for prompt in kind.prompts[: args.prompts]]
    with opened(args.models[0], args.mtp, args.threads) as session:
        plain = [answer(session, prompt, Tuning(depth=0), args.tokens) for prompt in prompts]
        lengths = [length_before_loop(reply.ids) for reply in plain]
        note(f"{sum(lengths)} tokens")
        recorded = steps_at(session, prompts, lengths, Tuning(depth=args.depth, gate=args.gate))
        saved = {"depth": args.depth, "gate": args.gate, "replies": _compact(recorded), "reruns": []}
        print(
            "| depth | gate | predicted | rerun | difference in points | its standard error | "
            "tokens a pass, predicted | rerun |"
        )
        print("| --- " * 8 + "|")
        for depth, gate in RERUNS:
            rerun = steps_at(session, prompts, lengths, Tuning(depth=depth, gate=gate))
            saved["reruns"].append(_print_rerun(recorded, rerun, depth, gate))
    if args.save:
        args.save.write_text(json.dumps(saved, separators=(",", ":")) + "\n", encoding="utf-8")


def _print_rerun(
    recorded: Sequence[Sequence[Step]], rerun: Sequence[Sequence[Step]], depth: int, gate: float
) -> dict[str, float]:
    """Print one line of the table; the rerun's counts."""

    def miss(chosen: Sequence[int]) -> float:
        predicted = what_if(rows_of([recorded[i] for i in chosen]), depth=depth, gate=gate).acceptance
        return (predicted or 0.0) - float(rows_of([rerun[i] for i in chosen]).accepted.mean())

    real = rows_of(rerun)
    predicted = what_if(rows_of(recorded), depth=depth, gate=gate)
    tokens = int(real.step_emitted.sum())
    print(
        f"| {depth} | {gate:g} | {predicted.acceptance:.3f} | {real.accepted.mean():.3f} | "
        f"{100 * miss(range(len(rerun))):+.1f} | {100 * jackknife(miss, len(rerun)):.1f} | "
        f"{predicted.tokens_per_step:.2f} | {tokens / real.steps:.2f} |",
        flush=True,
    )
    counts = {"judged": len(real), "accepted": int(real.accepted.sum()), "steps": real.steps}
    return {"depth": depth, "gate": gate, "tokens": tokens, **counts}


def _compact(replies: Sequence[Sequence[Step]]) -> list[list[list[object]]]:
    """For each step [depth asked, drafted, emitted, accepted, gaps of the judged drafts]."""
    return [
        [
            [
                step.depth,
                step.drafted,
                len(step.tokens),
                sum(row.accepted for row in step.judged),
                [round(row.draft_gap or 0.0, 3) for row in step.judged],
            ]
            for step in steps
        ]
        for steps in replies
    ]


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
    one.set_defaults(run=quantise)
    for name, run, prompts, tokens in (
        ("acceptance", print_acceptance, 6, 128),
        ("speed", print_speed, 2, 64),
        ("whatif", print_what_if, 6, 128),
        ("window", print_window, 6, 192),
    ):
        one = commands.add_parser(name)
        one.set_defaults(run=run)
        several = 1 if name == "whatif" else "+"
        one.add_argument("models", nargs=several, metavar="MODEL", help='GGUF, or "demo"')
        one.add_argument("--mtp", default="", metavar="FILE", help="support GGUF; the demo's own if left out")
        one.add_argument("--prompts", type=int, default=prompts, help="prompts of each kind of text")
        one.add_argument("--tokens", type=int, default=tokens, help="most tokens of a reply")
        one.add_argument("--depth", type=int, default=4 if name == "whatif" else 5)
        one.add_argument("-t", "--threads", type=int, default=0)
        if name == "acceptance":
            one.add_argument("--temps", type=float, nargs="+", default=[0.0, 0.7])
        if name == "window":
            one.add_argument("--temp", type=float, default=0.7)
        if name == "whatif":
            one.add_argument("--gate", type=float, default=0.0, help="of the recorded run")
            one.add_argument("--save", type=Path, metavar="FILE", help="record and counts as JSON")
    args = parser.parse_args()
    try:
        args.run(args)
    except (UserFacingError, OSError) as error:
        print(f"evaluate_support: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
