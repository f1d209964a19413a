"""What ds4chat costs over a server: time to the first token and tokens per second against a bare client.

    python tools/server_overhead.py http://127.0.0.1:8080 [--rounds 10] [--tokens 128]
    python tools/server_overhead.py --pace 2800      # a made-up stream of so many tokens per second

Both send the same request to the same llama-server, in turn, and read the same stream. The bare client only
looks for chunks with text; ds4chat's session makes its events and encodes them for the chat. Ratios above 1
mean that ds4chat was faster. The server limits both, so their medians differ by the machine's noise and by
what ds4chat wastes. The processor time of a token is what the client takes away from a server on the same
machine.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import Process, Queue

from ds4chat.engine.control import Control
from ds4chat.engine.events import Ended, Event, Generate, Load, ServerAddress, Step, Tuning
from ds4chat.engine.sessions import open_session
from ds4chat.engine.wire import encode

EVERY, DRAFTED = 3, 3
"""Tokens and drafts of a step of the made-up stream; all drafts but one are accepted."""
PROMPT = "Explain in a few paragraphs how a bicycle stays upright."


def bare(url: str, prompt: str, tokens: int) -> tuple[float, float, int]:
    """Seconds to the first token, seconds from there to the end, and the number of tokens."""
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0.0,
        "stream": True,
        "timings_per_token": True,
        "return_progress": True,
        "return_tokens": True,
        "ignore_eos": True,
    }
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode())
    begun = time.perf_counter()
    first, count = 0.0, 0
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data:") and not re.search(rb'"content": ?""', line):
                first = first or time.perf_counter()
                count += 1
    return first - begun, time.perf_counter() - first, count


class Replay(BaseHTTPRequestHandler):
    """A llama-server that makes up its stream."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "llama.cpp", ""
    pace = 0.0

    def do_GET(self) -> None:
        props = {"default_generation_settings": {"n_ctx": 4096}, "chat_template": "x"}
        body = json.dumps(props if self.path == "/props" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return self.server_version

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        due, count = time.perf_counter(), asked["n_predict"]
        for n in range(1, count + 1):
            if self.pace:
                due += 1 / self.pace
                time.sleep(max(0.0, due - time.perf_counter()))
            self._event(n, stop=False)
        self._event(count, stop=True)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, n: int, *, stop: bool) -> None:
        step = (n + EVERY - 2) // EVERY
        timings = {
            **dict.fromkeys(("prompt_per_token_ms", "prompt_per_second", "predicted_per_second"), 87.50123),
            "cache_n": 0,
            "prompt_n": 28,
            "prompt_ms": 233.581,
            "predicted_n": n,
            "predicted_ms": 1.5 * step,
            "draft_n": DRAFTED * step,
            "draft_n_accepted": (EVERY - 1) * step,
        }
        said = {"index": 0, "content": f" w{n}", "tokens": [n], "stop": False, "id_slot": -1}
        ended = {"content": "", "tokens": [], "stop": True, "stop_type": "limit"}
        data = json.dumps(
            said | (ended if stop else {}) | {"timings": timings}, separators=(",", ":")
        ).encode()
        self.wfile.write(b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data))

    def log_message(self, *args: object) -> None:
        pass


def replay(pace: float, address: Queue[str]) -> None:
    """Serve made-up streams at a pace, in tokens per second, until the process is ended."""
    Replay.pace = pace
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replay)
    address.put(f"http://127.0.0.1:{server.server_port}")
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", nargs="?")
    parser.add_argument("--pace", type=float, help="tokens a second of a made-up stream")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    if (given.url is None) == (given.pace is None):
        parser.error("name a llama-server or a --pace")
    if given.pace is not None:
        address: Queue[str] = Queue()
        Process(target=replay, args=(given.pace, address), daemon=True).start()
        given.url = address.get()
    session, loaded = open_session(
        Load("", server=ServerAddress(given.url, chosen=("temp",))), lambda event: None, forgiving=False
    )
    tuning = Tuning(temp=0.0)

    def ds4chat(prompt: str) -> tuple[float, float, int]:
        steps: list[tuple[float, int]] = []

        def collect(event: Event) -> None:
            if isinstance(event, Step):
                steps.append((time.perf_counter(), len(event.tokens)))
            encode(event)
            assert not isinstance(event, Ended) or event.finish_reason == "length", event

        begun = time.perf_counter()
        request = Generate(1, prompt=prompt, tuning=tuning, max_tokens=given.tokens, ignore_eos=True)
        session.generate(request, Control(tuning), collect)
        return steps[0][0] - begun, time.perf_counter() - steps[0][0], sum(count for _, count in steps)

    first, speed, cpu = ({"bare": [], "ds4chat": []} for _ in range(3))
    clients = [("bare", lambda prompt: bare(given.url, prompt, given.tokens)), ("ds4chat", ds4chat)]
    for number in range(given.rounds + 1):
        for name, ask in clients if number % 2 else reversed(clients):
            # Another first word each time, so that no prompt is in the server's cache.
            used = time.process_time()
            to_first, rest, count = ask(f"{number}{name[0]}. {PROMPT}")
            if number:  # the first round warms up
                cpu[name].append((time.process_time() - used) / count * 1e6)
                first[name].append(to_first * 1000)
                speed[name].append(count / rest)
    for what, unit, found in (("first token", "ms", first), ("speed", "tokens/s", speed)):
        above, below = ("bare", "ds4chat") if unit == "ms" else ("ds4chat", "bare")
        medians = {name: statistics.median(values) for name, values in found.items()}
        pairs = statistics.median(x / y for x, y in zip(found[above], found[below]))
        print(
            f"{what:<12} bare {medians['bare']:8.1f} {unit}, ds4chat {medians['ds4chat']:8.1f} {unit}, "
            f"ratio {medians[above] / medians[below]:.3f} (median of pairs {pairs:.3f})"
        )
    a, b = (statistics.median(cpu[name]) for name in ("bare", "ds4chat"))
    print(f"processor    bare {a:8.1f} us/token, ds4chat {b:8.1f} us/token")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory       {peak:.0f} MiB at most, {loaded.device}")


if __name__ == "__main__":
    main()
