"""llama.cpp's own speculative decoding, as compare_llama_cpp.py runs it: one process for each reply, a server
started for each depth, or a server that is already running."""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import urlsplit

from ds4chat.commands.bench.server import LlamaServer, ServerReply
from ds4chat.errors import UserFacingError

CONTEXT = 2048
LOOKUP = "lookup"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
RUN_S = 600
"""Longest wait for one answer of llama-speculative-simple, in seconds."""
START_S = 120
"""Longest wait for a server to load its models, in seconds."""
STOP_S = 10
"""Longest wait for a server to end, in seconds."""

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


class CompareError(UserFacingError):
    """Nothing can be compared."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What both sides run."""

    model: str
    support: str
    """Path; empty for lookup."""
    kind: str
    """One of SPEC_TYPES."""
    threads: int
    vocabulary: int
    size_bytes: int
    """Of the target's tensors."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of one side. drafted and accepted are tokens; the speed leaves the prompt out."""

    text: str
    tokens: int
    drafted: int
    accepted: int
    tokens_per_s: float


class Yardstick(Protocol):
    """llama.cpp in one of its forms."""

    name: str

    def answer(self, prompt: str, ids: Sequence[int], depth: int, tokens: int) -> Answer:
        """The greedy reply to a prompt, given as text and as token ids. Raises CompareError."""


_STEP = re.compile(r"accepted (\d+)/(\d+) draft tokens")
_DECODED = re.compile(r"decoded\s+(\d+) tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+) t/s")


def parse_simple(stdout: str, stderr: str, prompt: str, tokens: int) -> Answer:
    """The reply in what llama-speculative-simple wrote: the prompt and the text, and on stderr, at debug
    verbosity, each step.

    It ends its reply only after more than ``tokens`` tokens, and drafts without limit when one or none is
    left. Steps that begin there have no counterpart in ds4chat and are not counted. Raises CompareError for
    output of another form.
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
    """A llama-server on this machine. Raises UserFacingError if none answers with a model."""

    def __init__(self, url: str) -> None:
        with suppress(ValueError):  # LlamaServer explains a malformed one
            if (urlsplit(url).hostname or "localhost") not in LOOPBACK:
                raise CompareError(f'"{url}" is not on this machine: speeds compare only there.')
        self._server = LlamaServer(url)
        self.name = self._server.name

    def check(self, setup: Setup) -> None:
        """Raise UserFacingError if it is busy or runs another target."""
        self._server.check(Path(setup.model).name, setup.vocabulary, setup.size_bytes)

    def answer(self, prompt: str, ids: Sequence[int], depth: int, tokens: int) -> Answer:
        reply = self._server.answer(ids, tokens)
        assert reply is not None  # nobody stopped it
        return answer_of(reply)


def answer_of(reply: ServerReply) -> Answer:
    """A server's reply in the form of both sides. Raises CompareError where it is too short for a speed."""
    if reply.tokens_per_s is None:
        raise CompareError(
            "The server answered with a single token, which has no speed: take another prompt."
        )
    return Answer(reply.text, reply.tokens, reply.drafted, reply.accepted, reply.tokens_per_s)


@contextmanager
def started(command: Sequence[str], port: int) -> Iterator[Server]:
    """A server started with this command, ended afterwards. Raises CompareError when it does not come up."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        except OSError as error:
            raise CompareError(f"{command[0]} cannot be run: {error.strerror}. Check the path.") from None
        try:
            yield _ready(process, f"http://127.0.0.1:{port}", command[0], log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[bytes], url: str, name: str, log: IO[bytes]) -> Server:
    """The server that the process is, once its models are loaded. Raises CompareError."""
    until = time.monotonic() + START_S
    while True:
        try:
            return Server(url)
        except UserFacingError:
            if process.poll() is not None or time.monotonic() > until:
                log.seek(0)
                last = log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
                raise CompareError(f"{name} did not start: {' '.join(last) or 'no word of why'}") from None
            time.sleep(0.2)


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def yardstick(args: argparse.Namespace, setup: Setup, depth: int) -> Iterator[Yardstick]:
    """llama.cpp as the arguments name it, ready for this depth. Raises CompareError."""
    if args.simple:
        yield Simple(args.simple, setup)
    elif args.url:
        server = Server(args.url)
        server.check(setup)
        yield server
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
