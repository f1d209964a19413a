"""The comparison with llama.cpp reads its recorded answers, counts alike on both sides, tells differences,
and starts and ends its server.

simple.stdout.txt and simple.stderr.txt are one run of llama-speculative-simple (llama.cpp 0c1e570) with the
demo's two files, depth 3, -n 12, -lv 5; of stderr the lines that count. completion.json is an answer of
xllamacpp 2026.10.11549's server to the same prompt.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import compare_llama_cpp as tool
import llama_cpp_yardsticks as yardsticks
import pytest

from ds4chat.commands.bench.server import ServerReply

HERE = Path(__file__).resolve().parent
PROMPT = "<|im_start|>user\nCount to five.<|im_end|>\n<|im_start|>assistant\n"
OURS = "The number of ways to choose five items from a set of"


def recorded(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def completion() -> tool.Answer:
    return yardsticks.answer_of(ServerReply.of(json.loads(recorded("completion.json"))))


def simple(tokens: int) -> tool.Answer:
    return yardsticks.parse_simple(
        recorded("simple.stdout.txt"), recorded("simple.stderr.txt"), PROMPT, tokens
    )


def test_the_step_that_begins_with_one_token_left_is_not_counted() -> None:
    """Steps accepted 1 0 0 2 0 2 1 of 3: they end at 2 3 4 7 8 11 13 tokens. At 12 tokens ds4chat decodes the
    last one plainly, so that the seventh step has no counterpart."""
    answer = simple(12)
    assert (answer.drafted, answer.accepted) == (18, 5)
    assert answer.tokens == 13
    assert answer.tokens_per_s == 8.991


def test_all_steps_count_when_none_begins_at_the_end() -> None:
    answer = simple(13)
    assert (answer.drafted, answer.accepted) == (21, 6)  # n_drafted and n_accept of the same run


def test_the_text_is_what_follows_the_prompt() -> None:
    assert simple(12).text == OURS + " five"


@pytest.mark.parametrize("lost", ["decoded", "draft tokens"])
def test_output_of_another_form_is_refused_with_its_last_line(lost: str) -> None:
    err = "\n".join(line for line in recorded("simple.stderr.txt").splitlines() if lost not in line)
    with pytest.raises(tool.CompareError, match="accept    = "):
        yardsticks.parse_simple(recorded("simple.stdout.txt"), err, PROMPT, 12)


def test_a_server_answer_gives_its_counts() -> None:
    """Its first token came with the prompt: 11 tokens in 417.141 ms."""
    answer = completion()
    assert (answer.text, answer.tokens, answer.drafted, answer.accepted) == ("1. 1\n2. 2\n3.", 12, 8, 8)
    assert answer.tokens_per_s == pytest.approx(26.37, abs=0.001)


def test_a_server_answer_of_one_token_has_no_speed() -> None:
    body = json.loads(recorded("completion.json"))
    body["timings"]["predicted_n"] = 1
    with pytest.raises(tool.CompareError, match="single token"):
        yardsticks.answer_of(ServerReply.of(body))


def test_a_text_that_goes_on_to_its_steps_end_is_the_same_text_and_another_is_not() -> None:
    ours = tool.Answer(OURS, 12, 18, 5, 9.0)
    assert tool.Pair(ours, simple(12)).same_text
    assert not tool.Pair(ours, completion()).same_text
    assert not tool.Pair(tool.Answer("", 0, 0, 0, 0.0), simple(12)).same_text


def test_the_table_and_the_json_take_the_difference_over_the_same_texts_only() -> None:
    ours = tool.Answer(OURS, 12, 18, 6, 17.982)  # twice 8.991
    other = completion()
    row = tool.Row(3, (tool.Pair(ours, simple(12)), tool.Pair(ours, other)))
    assert row.difference == pytest.approx(6 / 18 - 5 / 18)
    # drafted 18 + 18 and 18 + 8, accepted 6 + 6 and 5 + 8, ratios 2 and 17.982 / 26.36998
    line = tool.table([row]).splitlines()[2]
    assert line == (
        "| 3 | 1 of 2 | 36 / 26 | 12 / 13 | 33.3% / 50.0% | +5.56 points "
        "| 18.0 / 17.7 | 1.34 (0.68 to 2.00) |"
    )
    written = json.loads(json.dumps(row.as_json()))
    assert written["same_text"] == 1
    assert written["theirs"]["drafted"] == 26
    assert written["acceptance_difference"] == pytest.approx(1 / 18)


def test_a_row_without_drafts_has_no_acceptance() -> None:
    plain = tool.Answer(OURS, 12, 0, 0, 9.0)
    line = tool.table([tool.Row(1, (tool.Pair(plain, plain),))]).splitlines()[2]
    assert "| - / - | - |" in line


def test_lookup_never_asks_ngram_simple_for_drafts_shorter_than_its_n_gram() -> None:
    setup = tool.Setup("m.gguf", "", tool.LOOKUP, 2, 49152, 1 << 20)
    for depth, size in ((1, "1"), (2, "2"), (3, "3"), (5, "3")):
        flags = yardsticks.flags(setup, depth)
        assert flags[flags.index("--spec-ngram-simple-size-n") + 1] == size
        assert flags[flags.index("--spec-ngram-simple-size-m") + 1] == str(depth)
        assert "-md" not in flags


def test_a_server_elsewhere_and_several_depths_of_a_running_one_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(tool.CompareError, match="not on this machine"):
        yardsticks.Server("http://192.0.2.1:8080")
    with pytest.raises(SystemExit) as left:
        tool.arguments(["demo", "demo", "--url", "http://127.0.0.1:8080"])
    assert left.value.code == 2
    assert "one depth" in capsys.readouterr().err


SERVER = """
import http.server, json, signal, sys, time
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
loading = 2
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global loading
        loading -= 1
        status, body = (503, {"error": {"message": "Loading model"}}) if loading >= 0 else (200, {})
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize("kind", ["willing", "stubborn"])
def test_a_started_server_is_waited_for_and_ended(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model takes two questions to load; at the end it is asked to go, then made to."""
    processes: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def kept(*args: object, **more: object) -> subprocess.Popen[bytes]:
        processes.append(start(*args, **more))  # type: ignore[call-overload]
        return processes[-1]

    monkeypatch.setattr(yardsticks.subprocess, "Popen", kept)
    monkeypatch.setattr(yardsticks, "STOP_S", 0.5)
    port = yardsticks.free_port()
    with yardsticks.started([sys.executable, "-c", SERVER, str(port), kind], port) as server:
        assert server.name == f"http://127.0.0.1:{port}"
        assert processes[0].poll() is None
    assert processes[0].poll() is not None


def test_a_server_that_cannot_be_started_says_why() -> None:
    with (
        pytest.raises(tool.CompareError, match=r"no-such-binary cannot be run.*Check the path"),
        yardsticks.started(["no-such-binary"], 1),
    ):
        pass
    port = yardsticks.free_port()
    with (
        pytest.raises(tool.CompareError, match="did not start: unknown option"),
        yardsticks.started([sys.executable, "-c", "raise SystemExit('unknown option')"], port),
    ):
        pass
