"""Measures what ds4chat costs, each figure against its yardstick in the same run, in turn.

    python tools/measure.py decode     one-shot decoding against a bare llama_decode + argmax loop
    python tools/measure.py python     Python's share of a step: time outside llama_decode over time in it
    python tools/measure.py paused     plain decoding with a drafter that rests against none
    python tools/measure.py sampling   a draw from a row of 49,152 and of 128,256 logits against llama.cpp's
    python tools/measure.py memory     resident memory of the two processes above the model file
    python tools/measure.py startup    seconds from `ds4chat` to a prompt that takes keys (POSIX)
    python tools/measure.py latency    key to echo in the chat while replies stream at full speed (POSIX)
    python tools/measure.py chat       decoding in the chat against the one shot, at one depth (POSIX)
    python tools/measure.py idle       CPU share of the chat and of its engine while nothing happens (Linux)
    python tools/measure.py baseline   the speed over plain decoding that a reply shows, against plain reruns

Medians over --runs runs. The demo model is used unless -m names another; --mtp names its support file.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = "Write a story about a lighthouse keeper and a whale."

BARE = """
import sys, time, ctypes
import llama_cpp.llama_cpp as C
import numpy as np
path, n, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
prompt = [int(t) for t in sys.argv[4].split(",")]
quiet = C.llama_log_callback(lambda *a: None)
C.llama_log_set(quiet, ctypes.c_void_p(0))
C.llama_backend_init()
model = C.llama_model_load_from_file(path.encode(), C.llama_model_default_params())
params = C.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = 8192, 512, threads, threads
context = C.llama_init_from_model(model, params)
vocab = C.llama_model_get_vocab(model)
n_vocab = C.llama_vocab_n_tokens(vocab)
batch = C.llama_batch_init(512, 0, 1)
def decode(tokens, pos):
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, pos + i, 1, 0
        batch.logits[i] = i == len(tokens) - 1
    assert C.llama_decode(context, batch) == 0
decode(prompt[:-1], 0)
last, pos = prompt[-1], len(prompt) - 1
started = time.perf_counter()
for _ in range(n):
    decode([last], pos)
    row = np.ctypeslib.as_array(C.llama_get_logits(context), (n_vocab,))
    last, pos = int(row.argmax()), pos + 1
print(n / (time.perf_counter() - started))
"""


def one_shot(*arguments: str) -> dict:
    """The JSON of a one shot."""
    command = [sys.executable, "-m", "ds4chat", "-p", PROMPT, "--json", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def decode(args: argparse.Namespace) -> None:
    """One-shot decoding against a bare loop, each in a process of its own."""
    from ds4chat.engine.events import Message
    from ds4chat.engine.llama import Model
    from ds4chat.engine.prompting import Prompter

    prompt = Prompter(Model(args.model)).chat([Message("user", PROMPT)], think=True).tokens
    ids, threads = ",".join(map(str, prompt)), str(args.threads)
    ours, bare = [], []
    for _ in range(args.runs):
        answer = one_shot("-m", args.model, "--ignore-eos", "-n", "200", "-t", threads)
        ours.append(answer["stats"]["decode_tokens_per_s"])
        command = [sys.executable, "-c", BARE, args.model, "200", threads, ids]
        bare.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    ratio = statistics.median(a / b for a, b in zip(ours, bare))
    print(
        f"plain decoding, 200 tokens, {threads} threads: one shot {statistics.median(ours):.1f} tok/s, "
        f"bare loop {statistics.median(bare):.1f} tok/s, ratio (median of {args.runs} pairs) {ratio:.3f}"
    )


@contextlib.contextmanager
def opened(load):
    """A session and its Loaded."""
    from ds4chat.engine.opening import open_session

    session, loaded = open_session(load, lambda event: None, forgiving=False)
    with contextlib.closing(session):
        yield session, loaded


def _steps(session, depth: int, tokens: int) -> tuple[list, float]:
    """The steps of a reply except the first, and the seconds that they spent inside llama.cpp."""
    from ds4chat.engine.control import Control
    from ds4chat.engine.events import Generate, Message, Step, Tuning
    from ds4chat.engine.llama import Context

    session.reset()
    steps: list[Step] = []
    begun: list[float] = []

    def take(event: object) -> None:
        if isinstance(event, Step):
            steps.append(event)
            if not begun:
                begun.append(Context.native_s)

    tuning = Tuning(depth=depth)
    request = Generate(1, (Message("user", PROMPT),), tuning=tuning, max_tokens=tokens, ignore_eos=True)
    session.generate(request, Control(tuning), take)
    return steps[1:], Context.native_s - begun[0]


def python_share(args: argparse.Namespace) -> None:
    """Time outside llama_decode over time in it, at depth 4 and without drafts."""
    from ds4chat.engine.events import Load

    with opened(Load(args.model, args.mtp, threads=args.threads)) as (session, _):
        _steps(session, 4, 32)
        for depth in (4, 0):
            shares, python_ms = [], []
            for _ in range(args.runs):
                steps, native = _steps(session, depth, args.tokens)
                python = sum(s.ms.total for s in steps) / 1000 - native
                shares.append(python / native)
                python_ms.append(python / len(steps) * 1000)
            print(
                f"depth {depth}: Python's share {statistics.median(shares):.2%}, "
                f"{statistics.median(python_ms):.2f} ms a step (median of {args.runs} runs)"
            )


def paused(args: argparse.Namespace) -> None:
    """The same reply by a session whose drafter rests and by one without a drafter, in turn."""
    from ds4chat.engine.events import Load

    resting = Load(args.model, args.mtp, threads=args.threads)
    with opened(resting) as (one, _), opened(dataclasses.replace(resting, support="")) as (other, _):
        took: dict = {one: [], other: []}
        for session in took:
            _steps(session, 0, 32)
        for run in range(args.runs):
            for session in took if run % 2 else reversed(took):
                steps, _ = _steps(session, 0, args.tokens)
                took[session] += [step.ms.total for step in steps]
    # The fastest tenth: other processes can only make a step slower.
    with_drafter, without = (statistics.quantiles(ms, n=10)[0] for ms in took.values())
    print(
        f"speed with a resting drafter over none: {without / with_drafter:.4f} ({with_drafter:.3f} and "
        f"{without:.3f} ms a step, the fastest tenth of {len(took[one])})"
    )


def sampling(args: argparse.Namespace) -> None:
    """Draws with the default settings from rows whose best logits stand out as a model's do. llama.cpp's own
    chain gets the whole vocabulary as a copy, the fastest way to hand it over."""
    import ctypes
    from types import SimpleNamespace

    from ds4chat.engine import llama  # isort: skip  # first, so that llama.cpp is loaded before numpy

    import llama_cpp.llama_cpp as C
    import numpy as np

    for n in (49_152, 128_256):
        row = np.random.default_rng(1).standard_normal(n).astype(np.float32) * 2.5
        row[5] = 14
        settings = {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "penalty": 1.0, "seed": 1}
        ours, whole = (llama.Sampler(SimpleNamespace(n_vocab=n), **settings) for _ in range(2))
        every = whole._ids.base.copy()
        every["id"], every["logit"] = np.arange(n), row
        every = every.view(np.uint8)

        def draw(n=n, whole=whole, every=every) -> None:
            whole._ids.base.view(np.uint8)[:] = every
            whole._array.size, whole._array.sorted = n, False
            C.llama_sampler_apply(whole._chain, ctypes.byref(whole._array))

        took = [
            min(_us(call, 50) for _ in range(args.runs))
            for call in (lambda: ours.sample(row), draw)  # noqa: B023
        ]
        print(f"{n:,} logits: a draw takes {took[0]:.0f} us, from the whole vocabulary {took[1]:.0f} us")
        ours.close()
        whole.close()


def _us(call, repeats: int) -> float:
    """Mean microseconds of a call."""
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats * 1e6


def memory(args: argparse.Namespace) -> None:
    """Anonymous memory of the engine's process and of the chat's."""
    from ds4chat.engine.client import EngineClient
    from ds4chat.engine.events import Ended, Generate, Load, Loaded

    client = EngineClient(Path(os.devnull).parent / "shm" / f"ds4chat-measure-{os.getpid()}.log")
    client.start()
    client.send(Load(args.model))
    client.wait_for(Loaded, 600)
    client.send(Generate(1, prompt=PROMPT, max_tokens=50))
    client.wait_for(Ended, 600)
    engine = _private(Path(f"/proc/{client.pid}/smaps_rollup").read_text())
    client.close()
    client.log_path.unlink()
    code = "import ds4chat.tui.app, os, sys; sys.stdout.write(open('/proc/self/smaps_rollup').read())"
    chat = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    print(
        f"engine process: {engine:.0f} MiB of its own beside the mapped model file "
        f"({Path(args.model).stat().st_size / 2**20:.0f} MiB); chat process after its imports: "
        f"{_private(chat):.0f} MiB"
    )


def _private(smaps: str) -> float:
    """MiB of anonymous memory."""
    return next(int(line.split()[1]) for line in smaps.splitlines() if line.startswith("Anonymous:")) / 1024


def startup(args: argparse.Namespace) -> None:
    """Seconds until the chat echoes a key."""
    import pexpect

    times = []
    for _ in range(args.runs):
        started = time.perf_counter()
        child = _chat()
        # Typed at once, again and again: the first time it is echoed, the prompt takes keys.
        while True:
            child.send("§")
            try:
                child.expect("§", timeout=0.02)
                break
            except pexpect.TIMEOUT:
                continue
        times.append(time.perf_counter() - started)
        child.close(force=True)
    print(f"start to a prompt that takes keys: {statistics.median(times):.2f} s (median of {args.runs} runs)")


def _chat(*more: str, size: tuple[int, int] = (24, 80)):
    """The chat in a pseudo-terminal, its screen drained by whoever reads it."""
    import pexpect

    command = ["-m", "ds4chat", "--demo", *more]
    child = pexpect.spawn(sys.executable, command, dimensions=size, encoding="utf-8", timeout=60, echo=False)
    child.delaybeforesend = None
    return child


KEYS = 200


def latency(args: argparse.Namespace) -> None:
    """Types characters that no model writes into the prompt while queued prompts run, and deletes each again.
    The characters alternate: typing the deleted one again before a frame would change nothing on screen."""
    child = _chat("-n", "400", size=(45, 150))
    child.expect("ready")
    for _ in range(12):
        child.send(f"{PROMPT}\r")
        time.sleep(0.2)
    child.expect("prefill|generating|tok/s")
    took = []
    for key in itertools.islice(itertools.cycle("§¶¤"), KEYS):
        time.sleep(0.07)
        child.read_nonblocking(1 << 20, timeout=0) if _readable(child) else None
        started = time.perf_counter()
        child.send(key)
        child.expect(key)
        took.append((time.perf_counter() - started) * 1000)
        child.send("\x7f")
    child.close(force=True)
    took.sort()
    print(
        f"key to echo while streaming: p50 {took[len(took) // 2]:.1f} ms, "
        f"p99 {took[int(len(took) * 0.99)]:.1f} ms ({KEYS} keys)"
    )


def chat(args: argparse.Namespace) -> None:
    """Decode speed of a reply in the chat, which draws it, over that of the one shot, which does not. The
    screen's bytes are only read and searched, which costs no more than a fast terminal does."""
    for size in ((45, 150), (24, 80)):
        ratios = []
        for _ in range(args.runs):
            child = _chat("-n", "300", "--end-loops", "off", size=size)
            _search(child, r"ready")
            child.send(f"{PROMPT}\r")
            found = _search(child, r"\d+ tokens · (?:repeats[^·]+· )?([\d.]+) tok/s")
            child.close(force=True)
            alone = one_shot("--demo", "-n", "300", "--end-loops", "off")
            ratios.append(float(found[1]) / alone["stats"]["decode_tokens_per_s"])
        print(
            f"chat at {size[1]}x{size[0]} over one shot, decoding at depth 2: "
            f"{statistics.median(ratios):.3f} (median of {args.runs} pairs)"
        )


def _search(child, pattern: str) -> re.Match[str]:
    """Read the screen's bytes until the pattern is found in them, escape sequences left out."""
    seen, give_up = "", time.monotonic() + 120
    while True:
        if time.monotonic() > give_up:
            raise SystemExit(f"The chat did not show {pattern!r} within 120 s. Start it and see why.")
        time.sleep(0.05)
        new = ""
        while _readable(child):
            new += child.read_nonblocking(1 << 16, timeout=1)
        if not new:
            continue
        seen = seen[-4096:] + new
        if found := re.search(pattern, re.sub(r"\x1b\[[0-9;?:<>=]*[a-zA-Z$]", "", seen)):
            return found


def _readable(child) -> bool:
    import select

    return bool(select.select([child.fileno()], [], [], 0)[0])


TALK = (
    "The keeper wrote down the weather, the ships and the birds of day {day}. Wind {wind}, fog until noon; "
    "the lamp burnt {wind} hours, and a whale passed the north side of the rock. "
)
SHORT, LONG = 1, 36
"""Days in the prompt: some 50 and 1,900 tokens of the demo's."""


def baseline(args: argparse.Namespace) -> None:
    """Gives each reply between two plain replies to the same prompt, of the same text, from a session without
    a drafter, because a resting drafter still reads along. The speedup that the reply shows is compared with
    what the plain replies really took, summed over the runs; the worst single run is in parentheses."""
    from ds4chat.engine.events import Load

    load = Load(args.model, args.mtp, ctx=max(4096, args.conversation + 1024), threads=args.threads)
    with opened(load) as (session, loaded), opened(dataclasses.replace(load, support="")) as (plain, _):
        kind = loaded.drafter.kind if loaded.drafter else "no drafter"
        machine = f"{loaded.threads} threads on {os.cpu_count()} cores, {loaded.device}"
        print(f"{Path(args.model).stem}, {kind}, {machine}")
        print(f"a pass at load: {loaded.plain_ms:.1f} ms, {1000 / loaded.plain_ms:.0f} tok/s")
        print("\n| context | beside it | settings | passes, of the time | shown | rerun | difference |")
        print("| --- " * 7 + "|")
        for busy in (False, True):
            beside = "a busy process" if busy else "nothing"
            with _busy_process(busy):
                _plain_line(plain, beside, args.conversation)
                for days in (SHORT, LONG):
                    for depth in (1, 2, 4) if loaded.drafter else ():
                        _baseline_line(session, plain, beside, days, depth, args.runs, args.tokens)


@contextlib.contextmanager
def _busy_process(wanted: bool):
    """Another process that never rests."""
    if not wanted:
        yield
        return
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def _timed_reply(session, days: int, depth: int, tokens: int):
    """The stats of a reply at this depth, and the prompt's tokens."""
    from ds4chat.commands.bench.running import reply_of
    from ds4chat.engine.control import Control
    from ds4chat.engine.events import Generate, Tuning
    from ds4chat.engine.stats import Stats

    prompt = "".join(TALK.format(day=day, wind=day * 7 % 12) for day in range(1, days + 1))
    tuning, stats = Tuning(depth=depth), Stats()
    request = Generate(
        1, prompt=prompt, tuning=tuning, max_tokens=tokens, ignore_eos=True, baseline=depth > 0
    )
    _, end = reply_of(session, request, Control(tuning), stats.fold)
    return stats, end.prompt_tokens


def _plain_line(session, beside: str, tokens: int) -> None:
    stats, before = _timed_reply(session, SHORT, 0, tokens)
    print(
        f"| {before} to {before + tokens} | {beside} | off | {stats.plain.passes} | "
        f"{stats.plain.speedup:.3f} | 1 | {stats.plain.speedup - 1:+.1%} |",
        flush=True,
    )


def _baseline_line(session, plainly, beside: str, days: int, depth: int, runs: int, tokens: int) -> None:
    _timed_reply(session, days, 0, 2)  # reads the prompt
    _timed_reply(plainly, days, 0, 2)
    shown, rerun, took, passes, spent, single = 0.0, 0.0, 0.0, 0, 0.0, []
    plain, before = _timed_reply(plainly, days, 0, tokens)
    for _ in range(runs):
        stats, _ = _timed_reply(session, days, depth, tokens)
        after, _ = _timed_reply(plainly, days, 0, tokens)
        # The mean of the plain replies on both sides, so that a drift cancels.
        real = (plain.ms["total"] + after.ms["total"]) / 2
        shown, rerun, took = shown + stats.plain.ms, rerun + real, took + stats.ms["total"]
        passes += stats.plain.passes
        spent += stats.outcomes["plain"] / stats.steps
        single.append(stats.plain.ms / real - 1)
        plain = after
    print(
        f"| {before} to {before + tokens} | {beside} | depth {depth} | {passes / runs:.0f}, "
        f"{spent / runs:.1%} of the steps | {shown / took:.3f} | {rerun / took:.3f} | "
        f"{shown / rerun - 1:+.1%} ({max(single, key=abs):+.1%}) |",
        flush=True,
    )


IDLE_S = 20


def idle(args: argparse.Namespace) -> None:
    """The share of a core that the chat and its engine use while nothing happens."""
    child = _chat()
    child.expect("ready")
    time.sleep(2)
    engines = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    pids = [child.pid, *map(int, engines)]
    before = [_cpu_s(pid) for pid in pids]
    end = time.monotonic() + IDLE_S
    while time.monotonic() < end:
        if _readable(child):
            child.read_nonblocking(1 << 20, timeout=0)
        time.sleep(0.1)
    used = [(_cpu_s(pid) - b) / IDLE_S for pid, b in zip(pids, before)]
    child.close(force=True)
    print(f"idle CPU over {IDLE_S} s: chat {used[0]:.2%} of a core, engine {sum(used[1:]):.2%}")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


MEASUREMENTS = {
    "decode": decode,
    "python": python_share,
    "paused": paused,
    "sampling": sampling,
    "memory": memory,
    "startup": startup,
    "latency": latency,
    "chat": chat,
    "idle": idle,
    "baseline": baseline,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("-m", "--model", default="")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="this thread's CPU time, for a busy machine; -t 1")
    parser.add_argument("--mtp", default="", help="support file of -m, for those that draft")
    parser.add_argument("--tokens", type=int, default=256, help="of a reply, for those that draft")
    parser.add_argument("--conversation", type=int, default=2000, help="plain tokens, for baseline")
    args = parser.parse_args()
    if args.cpu:
        if args.threads != 1:
            parser.error("--cpu counts one thread: add -t 1")
        time.perf_counter = time.thread_time
    if not args.model:
        from ds4chat.models.demo import demo_model, demo_support

        args.model, args.mtp = str(demo_model()), args.mtp or str(demo_support())
    MEASUREMENTS[args.what](args)


if __name__ == "__main__":
    main()
