"""The bench of a server: its own clock, its own counters, and a sentence that claims no more than they
tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kits.chat import served
from kits.json_schema import validate
from servers.replay import recorded
from servers.scripted import answers, llama, openai, says, scripted

from ds4chat.commands.arguments import UsageError
from ds4chat.commands.bench import run
from ds4chat.commands.bench.remote import Text, verdict
from ds4chat.commands.bench.running import BenchError
from ds4chat.commands.options import BenchOptions
from ds4chat.settings.schema import Settings


def measured(url: str, capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, Any]:
    assert run(Settings(server=url), BenchOptions(quick=True, json=True, **options)) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    validate(result, "ServerBenchDocument")
    return result


def test_speed_and_acceptance_are_the_servers_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with scripted(llama(answers(raw=recorded("eagle3.completion")))) as server:
        result = measured(server.url, capsys, save=str(tmp_path / "r.json"))
        asked = [request.json() for request in server.seen("/completion")]
    assert {(body["temperature"], body["n_predict"]) for body in asked} == {(0.0, 64)}
    assert [text["name"] for text in result["texts"]] == ["chat", "code", "list", "rewrite", "story"]
    for text in result["texts"]:
        # 39 tokens after the first in 512.039 ms; 24 of 42 drafts accepted, of 35 judged.
        assert text["tokens_per_s"] == pytest.approx(39 / 0.512039, abs=1e-3)
        assert (text["drafted"], text["accepted"]) == (84, 48)
    assert result["drafter"] == "draft-eagle3"
    # The reply's one step without drafts follows one with drafts, and so paid for the change of batch size.
    assert result["plain_tokens_per_s"] is None
    assert result["advice"].startswith("llama-server reaches 76.2 tokens per second")
    assert "Whether its drafts pay is unknown" in result["advice"]
    assert json.loads((tmp_path / "r.json").read_text()) == result


def test_its_steps_without_drafts_are_the_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(llama(answers(raw=recorded("ngram.chat")))) as server:
        server.routes["/props"] = answers({"default_generation_settings": {}})
        server.routes["/v1/chat/completions"] = server.routes["/completion"]
        result = measured(server.url, capsys)
    assert result["plain_tokens_per_s"] == pytest.approx(130, rel=0.2)
    assert result["advice"].startswith(
        "Speculation does not pay on this server: 118.1 tokens per second are 0.82"
    )


def test_a_server_that_tells_nothing_is_measured_by_the_clock_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with scripted(openai(says(*["word "] * 20))) as server:
        result = measured(server.url, capsys)
        text = run(Settings(server=server.url), BenchOptions(quick=True)), capsys.readouterr().out
    assert all(entry["acceptance"] is None for entry in result["texts"])
    assert result["plain_tokens_per_s"] is None
    assert "unknown" in text[1]


def test_a_server_that_fails_ends_the_bench_with_its_sentence() -> None:
    failing = openai(answers({}, 500))
    with scripted(failing) as server, pytest.raises(BenchError, match=r"failed \(HTTP 500\)"):
        run(Settings(server=server.url), BenchOptions(quick=True))


def test_two_servers_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="leave out --server or --compare"):
        run(Settings(server="http://a"), BenchOptions(compare="http://b"))
    with pytest.raises(UsageError, match="too short"):
        run(Settings(server="http://a", predict=3), BenchOptions())


@pytest.mark.parametrize(
    ("speed", "plain_ms", "says"),
    [
        (None, None, "Nothing was measured"),
        (100.0, None, "started without a drafter (start it with --spec-draft-n-max N)"),
        (100.0, 20.0, "pays on this server: 100.0 tokens per second are 2.00 times"),
        (51.0, 20.0, "does not pay on this server: 51.0 tokens per second are 1.02 times"),
    ],
)
def test_the_verdict(speed: float | None, plain_ms: float | None, says: str) -> None:
    assert says in verdict(served(), [Text("a")], speed, plain_ms)


def test_the_verdict_over_a_server_without_a_drafter() -> None:
    plain = served(speculates=False, fixed=(("depth", "start it so"),))
    assert (
        verdict(plain, [], 10.0, 100.0)
        == "The server runs without a drafter, at 10.0 tokens per second: start it so."
    )
