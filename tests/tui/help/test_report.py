"""The report for an issue: every figure from its own source, and nothing private."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tiny
from kits.chat import MODEL, loaded, server_info
from kits.chat_stage import Open
from kits.explorer_stage import VERDICTS, reply_of, steps_from

from ds4chat import __version__
from ds4chat.engine import machine
from ds4chat.engine.events import DrafterInfo, Ended, Loaded
from ds4chat.engine.stats import Stats
from ds4chat.models import demo
from ds4chat.models.errors import shown_size
from ds4chat.settings.schema import OPTIONS, Settings
from ds4chat.tui.help.about import AboutScreen, about_lines
from ds4chat.tui.help.report import model_facts, report
from ds4chat.tui.kit.lines import LinesView

HOME = "/home/someone"
SERVER = server_info(
    url="http://llama.example.org:8080",
    name="llama.example.org:8080",
    version="b7000",
    tells="by step",
    has_key=True,
    exposed=True,
)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", HOME)


def facts(text: str) -> dict[str, str]:
    """The values by their labels, each as its words."""
    found = [line.strip().split(None, 1) for line in text.splitlines()]
    return {words[0]: " ".join(words[1].split()) for words in found if len(words) == 2}


def figures(text: str, label: str) -> list[str]:
    """The words after a label, which may have several words itself."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).split()


def stats() -> Stats:
    """60 steps: 96 drafts judged, 72 accepted, 132 tokens in 54 * 40 + 6 * 20 = 2280 ms; a pass takes 20."""
    reply = reply_of(steps_from(VERDICTS))
    reply.end(Ended(1, "stop", "", 50, 10, 200.0, 2400.0, 30.0, 182, 7))
    return reply.stats


def test_the_figures_are_the_replys() -> None:
    session = stats()
    for step in steps_from(("++",), reply=2):
        session.fold(step)
    text = report(Settings(), loaded(), stats(), session, "ready")
    assert figures(text, "steps") == ["60", "61"]
    assert figures(text, "judged") == ["96", "98"]
    assert figures(text, "accepted") == ["72", "74"]
    assert figures(text, "emitted") == ["132", "135"]
    assert figures(text, "acceptance") == ["75.0", "%", "75.5", "%"]
    assert figures(text, "mean accepted") == ["1.33", "1.35"]
    assert figures(text, "tokens per step")[0] == "2.20"
    assert figures(text, "tok/s")[0] == "55.00"
    assert figures(text, "prefill tok/s")[0] == "200.00"
    assert facts(text)["plain"] == "50.0 tok/s by 6 passes here, 1.16× plain"
    assert facts(text)["outcomes"] == "full 30, partial 12, miss 12, plain 6"
    assert figures(text, "position 1") == ["77.8", "%", "42/54"]
    assert figures(text, "position 2") == ["71.4", "%", "30/42"]
    assert facts(text)["verify"] == "32.40 ms 85.3 %"
    assert facts(text)["total"] == "38.00 ms 100.0 %"
    assert facts(text)["context"] == "182 of 2,048 tokens"


def test_how_the_baseline_was_measured_is_told() -> None:
    def plain(reply: Stats) -> str:
        return facts(report(Settings(), loaded(), reply, reply, "ready"))["plain"]

    by_load = Stats()
    by_load.plain.load_ms = 25.0
    by_load.fold(steps_from(("++",))[0])
    assert plain(by_load) == "40.0 tok/s by a pass at load, 1.88× plain"
    by_load.plain.checked_ms = 60.0
    assert plain(by_load) == "50.0 tok/s by /check, 1.50× plain"
    untold = Stats()
    untold.fold(steps_from(("++",))[0])
    assert plain(untold) == "plain decoding was not measured"


def test_versions_and_the_machine_are_named() -> None:
    told = facts(report(Settings(), loaded(), None, Stats(), "ready"))
    assert told["ds4chat"] == __version__
    assert told["llama.cpp"] == "the one in llama-cpp-python 0.3.36"
    known = dataclasses.replace(loaded(), llama_cpp="0.5.0 (0c1e570) of llama-cpp-python 0.3.36")
    assert facts(report(Settings(), known, None, Stats(), "ready"))["llama.cpp"] == known.llama_cpp
    assert told["processor"].startswith(f"{machine.processor()}, {machine.cores()} core")
    assert told["device"] == "CPU, 2 threads"
    assert told["engine"] == "ready"


def test_files_have_their_quantisation_and_size(tiny_dir: Path) -> None:
    """The size is the file's, as inspect and the picker have it, and not that of the weights in it."""
    target = tiny.build("llama", tiny_dir)
    support = Path(demo.__file__).parent / "SmolLM2-135M-Instruct-EAGLE3-Q8_0.gguf"
    pair = dataclasses.replace(loaded(), drafter=DrafterInfo("eagle3", str(support), 16))
    pair = dataclasses.replace(pair, target=dataclasses.replace(pair.target, path=str(target)))
    text = report(Settings(), pair, None, Stats(), "ready")
    size = shown_size(target.stat().st_size)
    assert facts(text)["model"] == f"Tiny Chat, llama, Q4_1, a file of {size}, 135M parameters"
    assert str(target) in text
    size = shown_size(support.stat().st_size)
    assert facts(text)["drafter"] == f"eagle3, Q8_0, a file of {size}, at most 16 drafts per step"
    assert str(support) in text


def test_a_file_that_is_gone_is_said() -> None:
    told = facts(report(Settings(), loaded(), None, Stats(), "ready"))
    assert told["model"] == "Tiny Chat, llama, Q4_1, its file cannot be read now, 135M parameters"
    assert told["drafter"] == "eagle3, its file cannot be read now, at most 16 drafts per step"


def test_a_servers_model_has_the_size_of_its_weights() -> None:
    served = dataclasses.replace(loaded(), server=SERVER)
    assert (
        "Q4_1, 90 MB of weights, 135M" in facts(report(Settings(), served, None, Stats(), "ready"))["model"]
    )


def test_why_there_is_no_drafter_is_told() -> None:
    off = loaded(off_reason="the model has no NextN block")
    assert "MTP is off       the model has no NextN block" in report(Settings(), off, None, Stats(), "ready")


def test_without_a_model_it_says_so() -> None:
    text = report(Settings(), None, None, Stats(), "none")
    told = facts(text)
    assert told["model"] == "none is loaded"
    assert told["device"] == "not known before a model is loaded"
    assert "there is no reply with steps yet" in text
    assert text.startswith("```text\nds4chat") and text.endswith("\n```\n")


def test_over_a_server_its_kind_is_told_and_not_its_address() -> None:
    target = dataclasses.replace(
        MODEL, path=SERVER.url, name="Big", architecture="", quantisation="", size_bytes=0, parameters=0
    )
    there = Loaded(
        target,
        DrafterInfo("nextn", "", 0),
        "",
        4096,
        0,
        f"llama-server at {SERVER.name}",
        0.0,
        server=SERVER,
    )
    text = report(Settings(server="http://llama.example.org:8080"), there, None, Stats(), "ready")
    told = facts(text)
    assert "server           llama-server b7000, on another machine; it reports by step\n" in text
    assert (told["model"], told["drafter"]) == ("Big", "nextn")
    assert "example" not in text and "device" not in told
    local = dataclasses.replace(SERVER, url="http://127.0.0.1:8080", name="127.0.0.1:8080")
    here = dataclasses.replace(there, server=local, off_reason="http://127.0.0.1:8080/props tells none")
    text = report(Settings(), here, None, Stats(), "ready")
    assert "on this machine" in text and "127.0.0.1" not in text


def test_settings_that_differ_are_told_and_what_may_be_private_is_only_set() -> None:
    """Every option of a kind that can hold the user's words, with such a word in it."""
    secret = {"str": "SECRET", "table": {"SECRET": {"url": "SECRET"}}}
    private = {option.attribute: secret[option.kind] for option in OPTIONS if option.kind in secret}
    settings = Settings(**private, mtp_draft=2, mtp_strict=True, model=f"{HOME}/models/a.gguf")  # type: ignore[arg-type]
    text = report(settings, None, None, Stats(), "none")
    told = facts(text)
    assert (told["mtp-draft"], told["mtp-strict"], told["model"]) == ("2", "on", "~/models/a.gguf")
    assert told["system-prompt"] == told["presets"] == "set (not shown)"
    assert "SECRET" not in text
    assert "top-k" not in told
    assert "Settings that are not the defaults\n                   none" in report(
        Settings(), None, None, Stats(), "none"
    )


def test_the_home_folder_and_addresses_are_taken_out_of_every_sentence() -> None:
    off = loaded(off_reason=f"{HOME}/support.gguf does not pair, {HOME}2/x does")
    remote = dataclasses.replace(off, device="GPU of gpu.example.org:50052 + NVIDIA")
    text = report(Settings(rpc="gpu.example.org:50052"), remote, None, Stats(), "ready")
    assert "~/support.gguf does not pair, /home/someone2/x does" in text
    assert "GPU of (a server) + NVIDIA" in text and "example" not in text


def test_what_a_file_wrote_drives_no_terminal_and_breaks_no_line() -> None:
    evil = "a\x1b]0;PWN\x07\n```\n# b\u202e"
    hostile = dataclasses.replace(
        loaded(off_reason=evil),
        target=dataclasses.replace(MODEL, name=evil, path=f"/m/{evil}", architecture=evil, quantisation=evil),
        device=evil,
    )
    text = report(Settings(log_file=evil), hostile, None, Stats(), evil)
    assert not [char for char in text if char != "\n" and not char.isprintable()]
    # The fence is closed once, at its end.
    assert [line for line in text.splitlines() if line.startswith(("```", "#"))] == ["```text", "```"]


async def test_the_command_copies_it_without_a_word_of_the_conversation(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("xylophone", "enter")
        await chat.type("/report", "enter")
        await chat.searched()
        text = chat.app.clipboard
        assert "Tiny Chat, llama, Q4_1, its file" in text and "position 1" in text
        assert "xylophone" not in text and "Speculative" not in text and "guess" not in text
        assert any(said.startswith("Copied a report: paste it") for said in chat.said())


async def test_the_command_copies_it_without_a_model_too(opened: Open) -> None:
    async with opened(model="") as chat:
        await chat.type("/report", "enter")
        await chat.searched()
        assert (
            "none is loaded" in chat.app.clipboard
            and "there is no reply with steps yet" in chat.app.clipboard
        )


async def test_about_shows_the_machine_and_the_model(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/about", "enter")
        await chat.pilot.pause()
        assert isinstance(chat.app.screen, AboutScreen)
        await chat.searched()
        text = " ".join(chat.app.screen.query_one("#about-lines", LinesView).text.split())
    assert f"{machine.processor()}, {machine.cores()} core" in text
    assert "Tiny Chat, llama, Q4_1, its file cannot be read now, 135M parameters" in text
    assert "CPU, 2 threads" in text and "at most 16 drafts per step" in text


def test_about_has_whole_paths_on_a_narrow_terminal() -> None:
    long = "/" + "/".join(["a folder with-a-hyphen"] * 6)
    lines = [
        "".join(text for text, _ in line)
        for line in about_lines([("settings", Path(long))], (), (), loaded())
    ]
    at = next(at for at, line in enumerate(lines) if line.startswith("Settings"))
    shown = [line[10:] for line in lines[at : at + 3]]
    assert " ".join(shown).startswith(long) and max(map(len, lines[: at + 3])) <= 74


def test_about_says_where_the_text_goes() -> None:
    def end(pair: Loaded, rpc: str = "") -> str:
        return "".join(text for text, _ in about_lines((), (), (), pair, rpc, 200)[-1])

    assert end(loaded()) == "Nothing you write leaves this machine."
    assert end(loaded(), "10.0.0.2:50052").endswith("to the RPC servers that hold the model: 10.0.0.2:50052.")
    served = dataclasses.replace(loaded(), server=SERVER)
    assert end(served) == "What you write goes to the server llama.example.org:8080."


def test_about_without_a_model_says_that_none_is_loaded() -> None:
    assert "none is loaded" in "".join(
        text for line in about_lines((), (), model_facts(None)) for text, _ in line
    )
