"""Puts the same greedy prompts to ds4chat and to llama.cpp's own speculative decoding, and compares them.

    python tools/compare_llama_cpp.py MODEL SUPPORT --simple PATH       llama.cpp's llama-speculative-simple
    python tools/compare_llama_cpp.py MODEL SUPPORT --llama-server PATH its llama-server, started here
    python tools/compare_llama_cpp.py MODEL SUPPORT --xllamacpp PYTHON  the server in the package xllamacpp
    python tools/compare_llama_cpp.py MODEL SUPPORT --url URL           a llama-server that already runs here

"demo" names the demo's target as MODEL and its EAGLE-3 file as SUPPORT; "lookup" as SUPPORT takes drafts from
the text itself (ngram-simple in llama.cpp). ds4chat's engine runs in this process. The two are asked in turn,
and who goes first alternates. A running server keeps the support file and the depth it was started with: name
that depth. docs/llama-cpp.md says how the two count and what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llama_cpp_yardsticks import CONTEXT, LOOKUP, Answer, CompareError, Setup, yardstick

from ds4chat.errors import UserFacingError

CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides' reply to one prompt."""

    ours: Answer
    theirs: Answer

    @property
    def same_text(self) -> bool:
        """The shorter text begins the longer one: llama-speculative-simple writes on to its step's end."""
        a, b = self.ours.text.rstrip("\n"), self.theirs.text.rstrip("\n")
        length = min(len(a), len(b))
        return length > 0 and a[:length] == b[:length]


@dataclass(frozen=True, slots=True)
class Row:
    """One depth: its pairs, prompt by prompt, and repeats one after the other."""

    depth: int
    pairs: tuple[Pair, ...]

    def acceptance(self, side: str, *, same_text_only: bool = False) -> float | None:
        """accepted / drafted over all prompts, or over those with the same text; None without drafts."""
        answers = [getattr(p, side) for p in self.pairs if p.same_text or not same_text_only]
        drafted = sum(a.drafted for a in answers)
        return sum(a.accepted for a in answers) / drafted if drafted else None

    @property
    def difference(self) -> float | None:
        """Our acceptance minus llama.cpp's, over the prompts with the same text."""
        ours = self.acceptance("ours", same_text_only=True)
        theirs = self.acceptance("theirs", same_text_only=True)
        return None if ours is None or theirs is None else ours - theirs

    @property
    def ratios(self) -> list[float]:
        """Our speed over llama.cpp's, pair by pair."""
        return [p.ours.tokens_per_s / p.theirs.tokens_per_s for p in self.pairs]

    def as_json(self) -> dict[str, Any]:
        """The row with what follows from it."""
        return {
            "depth": self.depth,
            "same_text": sum(p.same_text for p in self.pairs),
            "ours": self.totals("ours"),
            "theirs": self.totals("theirs"),
            "acceptance_difference": self.difference,
            "speed_ratio_median": statistics.median(self.ratios),
            "pairs": [asdict(pair) for pair in self.pairs],
        }

    def totals(self, side: str) -> dict[str, Any]:
        """Counts and median speed of one side, "ours" or "theirs"."""
        answers = [getattr(p, side) for p in self.pairs]
        return {
            "tokens": sum(a.tokens for a in answers),
            "drafted": sum(a.drafted for a in answers),
            "accepted": sum(a.accepted for a in answers),
            "acceptance": self.acceptance(side),
            "tokens_per_s_median": statistics.median(a.tokens_per_s for a in answers),
        }


# ------------------------------------------------------------------------------------ ds4chat


class Ours:
    """ds4chat's engine in this process."""

    def __init__(self, model: str, support: str, threads: int) -> None:
        from ds4chat.engine.events import Load
        from ds4chat.engine.opening import open_session

        lookup = support == LOOKUP
        load = Load(model, "" if lookup else support, lookup=lookup, ctx=CONTEXT, threads=threads)
        self._session, loaded = open_session(load, lambda event: None, forgiving=False)
        if loaded.drafter is None:
            self.close()
            raise CompareError(f"ds4chat does not speculate with this: {loaded.off_reason}")
        self.setup = Setup(
            model,
            "" if lookup else support,
            loaded.drafter.kind,
            loaded.threads,
            loaded.target.n_vocab,
            loaded.target.size_bytes,
        )

    def ids(self, prompt: str) -> list[int]:
        """Token ids of a prompt."""
        return self._session.prompter.raw(prompt).tokens

    def answer(self, prompt: str, depth: int, tokens: int) -> Answer:
        """The greedy reply to a prompt. Raises UserFacingError."""
        from ds4chat.commands.bench.running import reply_of
        from ds4chat.engine.control import Control
        from ds4chat.engine.events import Generate, Tuning
        from ds4chat.engine.stats import Stats

        tuning, stats = Tuning(depth=depth, temp=0.0), Stats()
        request = Generate(1, prompt=prompt, tuning=tuning, max_tokens=tokens)
        self._session.reset()
        replied = reply_of(self._session, request, Control(tuning), stats.fold)
        assert replied is not None  # nobody stopped it
        steps, end = replied
        text = "".join(token.text for step in steps for token in step.tokens) + end.tail
        return Answer(text, stats.emitted, stats.drafted, stats.accepted, stats.decode_tokens_per_s or 0.0)

    def close(self) -> None:
        """Free the models."""
        self._session.close()


# ------------------------------------------------------------------------------------ the comparison


def compare(args: argparse.Namespace, prompts: Sequence[str], ours: Ours) -> list[Row]:
    """Every depth's row. Raises UserFacingError."""
    rows = []
    for depth in args.depths:
        pairs = []
        with yardstick(args, ours.setup, depth) as theirs:
            for number, prompt in enumerate(p for _ in range(args.repeats) for p in prompts):
                ids = ours.ids(prompt)
                if number % 2:
                    b = theirs.answer(prompt, ids, depth, args.tokens)
                    a = ours.answer(prompt, depth, args.tokens)
                else:
                    a = ours.answer(prompt, depth, args.tokens)
                    b = theirs.answer(prompt, ids, depth, args.tokens)
                pairs.append(Pair(a, b))
                print(f"depth {depth}, reply {number + 1}: {a.tokens} tokens", file=sys.stderr, flush=True)
        rows.append(Row(depth, tuple(pairs)))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown; counts and acceptance are ds4chat / llama.cpp."""
    lines = [
        "| depth | same text | drafted | accepted | acceptance | difference, same text | tokens/s, median "
        "| speed ratio, median (range) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        a, b = row.totals("ours"), row.totals("theirs")
        ratios = row.ratios
        lines.append(
            f"| {row.depth} | {sum(p.same_text for p in row.pairs)} of {len(row.pairs)} "
            f"| {a['drafted']} / {b['drafted']} | {a['accepted']} / {b['accepted']} "
            f"| {_share(a['acceptance'])} / {_share(b['acceptance'])} | {_points(row.difference)} "
            f"| {a['tokens_per_s_median']:.1f} / {b['tokens_per_s_median']:.1f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:+.2f} points"


def read_prompts(path: str, count: int, *, chatml: bool) -> list[str]:
    """Prompts of a file (a JSON list of strings), or the first of every kind of ds4chat's own, in turn.

    Raises CompareError.
    """
    if path:
        try:
            prompts = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CompareError(f"{path} cannot be read as a JSON list of prompts: {error}") from None
        if not isinstance(prompts, list) or not all(isinstance(p, str) and p for p in prompts):
            raise CompareError(f"{path} must hold a JSON list of prompts, each a string that is not empty.")
    else:
        from ds4chat.commands.bench.workloads import workloads

        prompts = [p for group in zip(*(w.prompts for w in workloads())) for p in group]
    return [CHATML.format(p) if chatml else p for p in prompts[:count]]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line. Leaves with code 2 when it is wrong."""
    parser = argparse.ArgumentParser(description="Compare ds4chat with llama.cpp's speculative decoding.")
    parser.add_argument("model", help='the target, or "demo"')
    parser.add_argument("support", help='the support file, "demo" or "lookup"')
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--simple", metavar="PATH", help="llama-speculative-simple")
    which.add_argument("--llama-server", metavar="PATH", help="llama-server, which is started for each depth")
    which.add_argument("--xllamacpp", metavar="PYTHON", help="a Python that has the package xllamacpp")
    which.add_argument("--url", help="a llama-server on this machine, started with the same files")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 5], metavar="N")
    parser.add_argument("--prompts", default="", metavar="FILE", help="a JSON list of strings")
    parser.add_argument("--count", type=int, default=6, metavar="N", help="prompts (default 6)")
    parser.add_argument("--chatml", action="store_true", help="put each prompt into a ChatML turn")
    parser.add_argument("-n", "--tokens", type=int, default=128, metavar="N", help="a reply (default 128)")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="rounds over the prompts")
    parser.add_argument(
        "-t", "--threads", type=int, default=0, metavar="N", help="for both (default: measured)"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything there too")
    args = parser.parse_args(argv)
    if min(args.depths) < 1 or max(args.depths) > 16 or min(args.count, args.repeats) < 1 or args.tokens < 2:
        parser.error("depths are 1 to 16, --count and --repeats at least 1, --tokens at least 2")
    if args.url and len(args.depths) > 1:
        parser.error("a running server has one depth: name it with --depths N")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; 0, or 1 with a sentence on stderr."""
    args = arguments(argv)
    try:
        from ds4chat.models.demo import demo_model, demo_support

        model = str(demo_model()) if args.model == "demo" else args.model
        support = str(demo_support()) if args.support == "demo" else args.support
        prompts = read_prompts(args.prompts, args.count, chatml=args.chatml)
        with contextlib.closing(Ours(model, support, args.threads)) as ours:
            rows = compare(args, prompts, ours)
            setup = ours.setup
        print(table(rows))
        if args.url and not any(row.totals("theirs")["drafted"] for row in rows):
            print(
                "The server drafted nothing, so only the texts compare: start it with the same support file "
                "and its --spec-type.",
                file=sys.stderr,
            )
        if args.json:
            report = {**asdict(setup), "tokens": args.tokens, "rows": [row.as_json() for row in rows]}
            Path(args.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    except (UserFacingError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped: nothing was compared to its end.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
