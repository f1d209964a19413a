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
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

CONTEXT = 2048
LOOKUP = "lookup"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
RUN_S = 600
"""Longest wait for one answer, in seconds."""
START_S = 120
"""Longest wait for a server to load its models, in seconds."""
CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"

SPEC_TYPES = {
    "draft-model": "draft-simple",
    "eagle3": "draft-eagle3",
    "nextn-embedded": "draft-mtp",
    "nextn-support": "draft-mtp",
    "gemma4-assistant": "draft-mtp",
    LOOKUP: "ngram-simple",
}
"""llama.cpp's --spec-type of each of ds4chat's kinds of drafter."""

XLLAMACPP = """
import json, sys, time
import xllamacpp as x
o = json.loads(sys.argv[1])
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.warmup = o["model"], o["ctx"], 1, True
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = o["threads"]
p.hostnames, p.port, p.endpoint_slots = ["127.0.0.1"], o["port"], False
s = p.speculative
name = "COMMON_SPECULATIVE_TYPE_" + o["type"].upper().replace("-", "_")
s.types = [getattr(x.common_speculative_type, name)]
if o["support"]:
    s.draft.mparams.path = o["support"]
    s.draft.cpuparams.n_threads = s.draft.cpuparams_batch.n_threads = o["threads"]
s.draft.n_max, s.draft.p_min = o["depth"], 0.0
s.ngram_simple.size_n, s.ngram_simple.size_m = o["gram"], o["depth"]
server = x.Server(p)
sys.stdin.read()
"""
"""Serves until its standard input closes."""


class CompareError(Exception):
    """Nothing can be compared; the text is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What both sides run."""

    model: str
    support: str
    """Path; empty for lookup."""
    kind: str
    """One of SPEC_TYPES."""
    threads: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of one side. drafted and accepted are tokens; the speed leaves the prompt out."""

    text: str
    tokens: int
    drafted: int
    accepted: int
    tokens_per_s: float


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
            "ours": self._totals("ours"),
            "theirs": self._totals("theirs"),
            "acceptance_difference": self.difference,
            "speed_ratio_median": statistics.median(self.ratios),
            "pairs": [asdict(pair) for pair in self.pairs],
        }

    def _totals(self, side: str) -> dict[str, Any]:
        answers = [getattr(p, side) for p in self.pairs]
        return {
            "tokens": sum(a.tokens for a in answers),
            "drafted": sum(a.drafted for a in answers),
            "accepted": sum(a.accepted for a in answers),
            "acceptance": self.acceptance(side),
            "tokens_per_s_median": statistics.median(a.tokens_per_s for a in answers),
        }


class Yardstick(Protocol):
    """llama.cpp in one of its forms."""

    name: str

    def answer(self, prompt: str, ids: Sequence[int], depth: int, tokens: int) -> Answer:
        """The greedy reply to a prompt, given as text and as token ids. Raises CompareError."""


# ------------------------------------------------------------------------------------ parsing

_STEP = re.compile(r"accepted (\d+)/(\d+) draft tokens")
_DECODED = re.compile(r"decoded\s+(\d+) tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+) t/s")


def parse_simple(stdout: str, stderr: str, prompt: str, tokens: int) -> Answer:
    """What llama-speculative-simple wrote: the prompt and text, and on stderr, at debug verbosity, each step.

    It ends its reply only after more than ``tokens`` tokens, and drafts without limit where one or none is
    left. Steps that begin there have no counterpart in ds4chat and are not counted. Raises CompareError when
    it is not its form.
    """
    decoded = _DECODED.search(stderr)
    steps = [(int(accepted), int(drafted)) for accepted, drafted in _STEP.findall(stderr)]
    _, found, text = stdout.partition(prompt)
    if not decoded or not steps or not found:
        last = stderr.strip().splitlines()[-1:] or ["it wrote nothing"]
        raise CompareError(
            f"llama-speculative-simple did not answer in the form of llama.cpp 0.5.0: {last[0]}. Run it by "
            "hand with the same model and support file."
        )
    emitted = drafted = accepted = 0
    for step_accepted, step_drafted in steps:
        if emitted >= tokens - 1:
            break
        emitted += step_accepted + 1
        drafted += step_drafted
        accepted += step_accepted
    return Answer(
        text=text.rstrip("\n"),
        tokens=int(decoded[1]),
        drafted=drafted,
        accepted=accepted,
        tokens_per_s=float(decoded[2]),
    )


def parse_completion(body: dict[str, Any]) -> Answer:
    """A llama-server's answer to /completion. Raises CompareError when it has no timings."""
    try:
        timings = body["timings"]
        return Answer(
            text=str(body["content"]),
            tokens=int(timings["predicted_n"]),
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            tokens_per_s=float(timings["predicted_per_second"]),
        )
    except (KeyError, TypeError, ValueError):
        raise CompareError(
            "The server answered without text and timings, so it is no llama-server of llama.cpp."
        ) from None


# ------------------------------------------------------------------------------------ llama.cpp


def flags(setup: Setup, depth: int) -> list[str]:
    """The options that llama-speculative-simple and llama-server share, as of llama.cpp 0.5.0."""
    threads = str(setup.threads)
    out = ["-m", setup.model, "-c", str(CONTEXT), "-t", threads, "-tb", threads]
    out += ["--spec-type", SPEC_TYPES[setup.kind]]
    if setup.kind == LOOKUP:
        out += ["--spec-ngram-simple-size-n", str(gram(depth)), "--spec-ngram-simple-size-m", str(depth)]
        return out
    if setup.support and setup.kind != "nextn-embedded":
        out += ["-md", setup.support]
    return [
        *out,
        "-td",
        threads,
        "-tbd",
        threads,
        "--spec-draft-n-max",
        str(depth),
        "--spec-draft-p-min",
        "0",
    ]


def gram(depth: int) -> int:
    """Length of the n-gram that ngram-simple looks up: ds4chat's shortest, 3, but never above the depth,
    because ngram-simple drops drafts that are shorter than its n-gram."""
    return min(3, depth)


class Simple:
    """llama-speculative-simple, a process for each reply."""

    def __init__(self, binary: str, setup: Setup) -> None:
        self.name = Path(binary).name
        self._binary = binary
        self._setup = setup

    def answer(self, prompt: str, ids: Sequence[int], depth: int, tokens: int) -> Answer:
        command = [self._binary, *flags(self._setup, depth), "-n", str(tokens), "--temp", "0"]
        command += ["--color", "off", "-lv", "5", "--no-escape", "-p", prompt]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=RUN_S, stdin=subprocess.DEVNULL, check=False
            )
        except OSError as error:
            raise CompareError(f"{self._binary} cannot be run: {error.strerror}. Check the path.") from None
        except subprocess.TimeoutExpired:
            raise CompareError(f"{self._binary} took longer than {RUN_S} s. Ask for fewer tokens.") from None
        out, err = (part.decode("utf-8", "replace") for part in (done.stdout, done.stderr))
        return parse_simple(out, err, prompt, tokens)


class Server:
    """A llama-server on this machine."""

    def __init__(self, url: str) -> None:
        if urlsplit(url).hostname not in LOOPBACK:
            raise CompareError(f'"{url}" is not on this machine: speeds compare only there.')
        self.name = self.url = url.rstrip("/")
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answer(self, prompt: str, ids: Sequence[int], depth: int, tokens: int) -> Answer:
        return parse_completion(
            self._ask(
                "/completion",
                {
                    "prompt": list(ids),
                    "n_predict": tokens,
                    "temperature": 0,
                    "cache_prompt": False,
                },
            )
        )

    def ready(self) -> bool:
        """Its models are loaded."""
        try:
            return self._ask("/health", None).get("status") == "ok"
        except CompareError:
            return False

    def _ask(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=RUN_S) as response:
                answer = json.loads(response.read())
        except (OSError, urllib.error.URLError, ValueError) as error:
            raise CompareError(f"{self.url}{path} gave no answer: {error}. Is llama-server there?") from None
        if not isinstance(answer, dict):
            raise CompareError(f"{self.url}{path} did not answer as a llama-server does.")
        return answer


@contextmanager
def started(command: Sequence[str], port: int) -> Iterator[Server]:
    """A server started with this command, ended afterwards. Raises CompareError when it does not come up."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        except OSError as error:
            raise CompareError(f"{command[0]} cannot be run: {error.strerror}. Check the path.") from None
        try:
            server = Server(f"http://127.0.0.1:{port}")
            until = time.monotonic() + START_S
            while not server.ready():
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    last = log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
                    raise CompareError(f"{command[0]} did not start: {' '.join(last) or 'no word of why'}")
                time.sleep(0.2)
            yield server
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
    """A port of the loopback that nobody holds now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def yardstick(args: argparse.Namespace, setup: Setup, depth: int) -> Iterator[Yardstick]:
    """llama.cpp as the arguments name it, ready for this depth. Raises CompareError."""
    if args.simple:
        yield Simple(args.simple, setup)
    elif args.url:
        yield Server(args.url)
    else:
        port = free_port()
        if args.llama_server:
            command = [args.llama_server, *flags(setup, depth), "-np", "1", "--port", str(port)]
        else:
            options = {
                "model": setup.model,
                "support": setup.support if setup.kind != "nextn-embedded" else "",
                "type": SPEC_TYPES[setup.kind],
                "depth": depth,
                "gram": gram(depth),
                "threads": setup.threads,
                "ctx": CONTEXT,
                "port": port,
            }
            command = [args.xllamacpp, "-c", XLLAMACPP, json.dumps(options)]
        with started(command, port) as server:
            yield server


# ------------------------------------------------------------------------------------ ds4chat


class Ours:
    """ds4chat's engine in this process."""

    def __init__(self, model: str, support: str, threads: int) -> None:
        from ds4chat.engine.events import Load
        from ds4chat.engine.opening import LoadError, open_session

        lookup = support == LOOKUP
        load = Load(model, "" if lookup else support, lookup=lookup, ctx=CONTEXT, threads=threads)
        try:
            self._session, loaded = open_session(load, lambda event: None, forgiving=False)
        except LoadError as error:
            raise CompareError(str(error)) from None
        if loaded.drafter is None:
            self.close()
            raise CompareError(f"ds4chat does not speculate with this: {loaded.off_reason}")
        self.kind = loaded.drafter.kind
        self.threads = loaded.threads

    def ids(self, prompt: str) -> list[int]:
        """Token ids of a prompt."""
        return self._session.prompter.raw(prompt).tokens

    def answer(self, prompt: str, depth: int, tokens: int) -> Answer:
        """The greedy reply to a prompt. Raises CompareError."""
        from ds4chat.engine.events import Ended, Event, Generate, Step, Tuning
        from ds4chat.engine.session import Control
        from ds4chat.engine.stats import Stats

        tuning = Tuning(depth=depth, temp=0.0)
        stats = Stats()
        text: list[str] = []
        ended: list[Ended] = []

        def take(event: Event) -> None:
            stats.fold(event)
            if isinstance(event, Step):
                text.extend(token.text for token in event.tokens)
            elif isinstance(event, Ended):
                text.append(event.tail)
                ended.append(event)

        self._session.reset()
        self._session.generate(
            Generate(1, prompt=prompt, tuning=tuning, max_tokens=tokens), Control(tuning), take
        )
        if ended[0].finish_reason == "error":
            raise CompareError(f"ds4chat could not answer: {ended[0].detail}")
        return Answer(
            "".join(text), stats.emitted, stats.drafted, stats.accepted, stats.decode_tokens_per_s or 0.0
        )

    def close(self) -> None:
        """Free the models."""
        self._session.close()


# ------------------------------------------------------------------------------------ the comparison


def compare(args: argparse.Namespace, prompts: Sequence[str], ours: Ours, setup: Setup) -> list[Row]:
    """Every depth's row. Raises CompareError."""
    rows = []
    for depth in args.depths:
        pairs = []
        with yardstick(args, setup, depth) as theirs:
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
        a, b = (row._totals(side) for side in ("ours", "theirs"))
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
        from ds4chat.workloads import workloads

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
        from ds4chat.models.errors import ModelFileError

        try:
            model = str(demo_model()) if args.model == "demo" else args.model
            support = str(demo_support()) if args.support == "demo" else args.support
        except ModelFileError as error:
            raise CompareError(str(error)) from None
        prompts = read_prompts(args.prompts, args.count, chatml=args.chatml)
        with contextlib.closing(Ours(model, support, args.threads)) as ours:
            setup = Setup(model, "" if ours.kind == LOOKUP else support, ours.kind, ours.threads)
            rows = compare(args, prompts, ours, setup)
        print(table(rows))
        if args.json:
            report = {**asdict(setup), "tokens": args.tokens, "rows": [row.as_json() for row in rows]}
            Path(args.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    except (CompareError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
