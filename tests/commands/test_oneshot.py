"""The one shot as a user runs it: its stdout, its stderr and its exit code; in a process of its own where
its start, signals, pipes or what llama.cpp itself writes matter."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pexpect
import pytest
import tiny
from kits.command_line import RunHere, ds4chat
from kits.json_schema import validate
from kits.terminal import Terminal

END_NOW = " end now"


@contextmanager
def started(*args: str) -> Iterator[subprocess.Popen[str]]:
    """ds4chat with these arguments; it does not outlive the test, whatever comes of that."""
    command = [sys.executable, "-m", "ds4chat", *args]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tiny")
    target = tiny.build("deepseek4", folder)
    support = tiny.build("deepseek4-support", folder, wrong_every=4)
    return ["-m", str(target), "--mtp", str(support), "-c", "512", "-t", "1"]


def plain_text(n: int) -> str:
    return tiny.text(tiny.reply(tiny.encode(END_NOW)[-1], n))


def test_the_reply_is_all_that_stdout_holds(pair: list[str]) -> None:
    done = ds4chat(*pair, "--raw", "-p", END_NOW, "-n", "30")
    assert done.code == 0
    assert done.out == plain_text(30) + "\n"
    assert done.err == ""


def test_json_is_one_object_of_the_documented_form(run_here: RunHere, pair: list[str]) -> None:
    done = run_here(*pair, "--raw", "-p", END_NOW, "-n", "200", "--mtp-draft", "3", "--json")
    answer = json.loads(done.out)
    validate(answer, "AnswerDocument")
    assert answer["text"] == "".join(t["text"] for t in answer["tokens"]) == plain_text(200)
    assert answer["finish_reason"] == "length"
    stats, origins = answer["stats"], Counter(token["origin"] for token in answer["tokens"])
    assert stats["emitted"] == 200
    assert stats["accepted"] == origins["accepted"] and not stats["accepted_ends"]
    # The reply begins with two plain steps, the second of them a pass; few drafts are wrong.
    assert origins["accepted"] > 140
    assert stats["judged"] == stats["accepted"] + origins["corrected"]
    assert stats["outcomes"]["plain"] == origins["plain"] >= 2
    assert stats["plain_passes"] >= 1 and stats["speedup"] > 0
    assert stats["acceptance"] == pytest.approx(stats["accepted"] / stats["judged"], abs=1e-4)
    assert answer["settings"]["drafter"] == "nextn-support"
    assert (answer["settings"]["draft"], answer["settings"]["mode"]) == (3, "exact")


def thinking_model(folder: Path) -> list[str]:
    """Opens a thought itself, whatever is asked."""
    says = ("<think>", " let", " me", " see", "</think>", " it", " is", " five")
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    path = tiny.build("llama-speaker", folder, says=says, special=("<think>", "</think>"), template=template)
    return ["-m", str(path), "-c", "256", "-t", "1", "-p", "hi"]


def test_stdout_holds_the_answer_alone_and_stderr_the_thinking_on_request(
    run_here: RunHere, tiny_dir: Path
) -> None:
    model = thinking_model(tiny_dir)
    done = run_here(*model)
    assert (done.code, done.out, done.err) == (0, " it is five\n", "")
    done = run_here(*model, "--show-thinking")
    assert (done.out, done.err) == (" it is five\n", " let me see\n")
    done = run_here(*model, "-n", "3")
    assert (done.code, done.out) == (0, "")
    assert "ended while the model was thinking" in done.err and "--nothink" in done.err


def test_json_has_the_thinking_beside_the_answer(run_here: RunHere, tiny_dir: Path) -> None:
    model = thinking_model(tiny_dir)
    answer = json.loads(run_here(*model, "--json").out)
    validate(answer, "AnswerDocument")
    assert (answer["text"], answer["thinking"]) == (" it is five", " let me see")
    assert [t.get("thinking") for t in answer["tokens"]] == [True] * 5 + [None] * 3
    cut = json.loads(run_here(*model, "--json", "-n", "3").out)
    assert (cut["text"], cut["thinking"], cut["finish_reason"]) == ("", " let me", "length")


@pytest.mark.parametrize("depth", ["1", "3", "16", "auto"])
def test_the_text_does_not_depend_on_the_depth(run_here: RunHere, pair: list[str], depth: str) -> None:
    assert (
        run_here(*pair, "--raw", "-p", END_NOW, "-n", "60", "--mtp-draft", depth).out == plain_text(60) + "\n"
    )


def test_logs_go_to_stderr_one_line_an_event(run_here: RunHere, pair: list[str]) -> None:
    done = run_here(
        *pair,
        "--raw",
        "-p",
        END_NOW,
        "-n",
        "20",
        "--mtp-draft",
        "3",
        "--mtp-timing",
        "--mtp-spec-log",
        "--mtp-conf-log",
    )
    assert done.out == plain_text(20) + "\n"
    lines = done.err.splitlines()
    assert all(line.startswith("ds4chat: mtp ") for line in lines)
    # Two plain steps for the baseline, and the rest of the text with drafts.
    hand = tiny.simulate([*tiny.encode(END_NOW), *tiny.reply(tiny.encode(END_NOW)[-1], 2)], 18, 3)
    assert sum(" timing " in line for line in lines) == hand.steps + 2
    assert sum(" spec " in line for line in lines) == hand.steps + 2
    assert sum(" conf " in line for line in lines) == hand.judged
    summary = next(line for line in lines if " summary steps=" in line)
    assert (
        f"steps={hand.steps + 2} drafted={hand.drafted} judged={hand.judged} accepted={hand.accepted}"
        in summary
    )


def test_a_prompt_may_come_from_a_pipe_or_a_file(run_here: RunHere, pair: list[str], tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(END_NOW)
    args = [*pair, "--raw", "-n", "10"]
    assert ds4chat(*args, stdin=END_NOW).out == plain_text(10) + "\n"
    assert run_here(*args, "--prompt-file", tmp_path / "prompt.txt").out == plain_text(10) + "\n"


def test_why_speculation_is_off_is_said(run_here: RunHere, tmp_path: Path) -> None:
    target = tiny.build("llama", tmp_path)
    done = run_here("-m", target, "--lookup", "--split-mode", "row", "--raw", "-p", END_NOW, "-n", "5")
    assert done.out == plain_text(5) + "\n"
    assert "MTP is off" in done.err
    assert "split mode row" in done.err


@pytest.mark.parametrize("case", ["missing", "zip", "empty", "cut", "folder", "support as model", "no nextn"])
def test_files_that_cannot_run_give_one_sentence_and_exit_1(
    run_here: RunHere, tmp_path: Path, case: str
) -> None:
    target = tiny.build("llama", tmp_path / "tiny")
    whole = target.read_bytes()
    more: list[str | Path] = []
    path = tmp_path / "x.gguf"
    if case == "zip":
        path.write_bytes(b"PK\x03\x04")
    elif case == "empty":
        path.touch()
    elif case == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif case == "folder":
        path.mkdir()
    elif case == "support as model":
        path = tiny.build("deepseek4-support", tmp_path / "tiny")
    elif case == "no nextn":
        path, more = target, ["--mtp"]
    done = run_here("-m", path, *more, "-p", "hi", "--raw")
    assert done.code == 1, done.err
    assert done.out == ""
    lines = done.err.strip().splitlines()
    assert len(lines) == 1
    assert path.name in lines[0]
    assert "Traceback" not in done.err


def test_a_conversation_is_written_as_the_options_say(
    run_here: RunHere, pair: list[str], tmp_path: Path
) -> None:
    """In the model's template, in one of llama.cpp's by name, in a file's, or in none."""
    file = tmp_path / "mine.jinja"
    file.write_text("{{ messages[-1].content }} sea", encoding="utf-8")
    written: dict[tuple[str, ...], str] = {
        (): "<｜User｜> log<｜Assistant｜></think>",
        ("--chat-template", "chatml"): "<|im_start|>user\n log<|im_end|>\n<|im_start|>assistant\n",
        ("--chat-template", str(file)): " log sea",
        ("--no-template",): "User:  log\nAssistant:",
    }
    for options, text in written.items():
        done = run_here(*pair, *options, "--nothink", "-p", " log", "-n", "1", "--json")
        assert done.code == 0, done.err
        assert done.json["prompt_tokens"] == len(tiny.encode(text)), options


def test_a_typed_special_token_is_told_of_on_stderr_alone(
    run_here: RunHere, pair: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("a<｜User｜>b\n c<｜User｜>\n", encoding="utf-8")
    for prompt in (("-p", "a<｜User｜>b"), ("--prompts-file", str(file))):
        done = run_here(*pair, *prompt, "-n", "2")
        assert done.err.count("holds <｜User｜>: the model gets that as text") == 1
        assert "holds" not in done.out


def test_a_template_that_does_not_exist_is_said_with_the_names_there_are(
    run_here: RunHere, pair: list[str]
) -> None:
    for command in (("-p", "hi"), ("--prompts-file", __file__)):
        done = run_here(*pair, *command, "--chat-template", "chatlm")
        assert (done.code, done.out) == (1, "")
        assert "There is no chat template chatlm: name a file with a Jinja template, or one of" in done.err
        assert "chatml" in done.err


def test_a_prompt_longer_than_the_context_is_said_and_exits_1(run_here: RunHere, pair: list[str]) -> None:
    done = run_here(*pair, "--raw", "-p", END_NOW * 500)
    assert done.code == 1
    assert "the context holds 512" in done.err


def test_ctrl_c_keeps_what_came_and_exits_130(pair: list[str]) -> None:
    args = [*pair[:4], "-c", "100000", "-t", "1", "--raw", "-p", END_NOW]
    with started(*args) as child:
        assert child.stdout is not None
        first = child.stdout.read(200)
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=120)
        assert child.returncode == 130
        assert (first + rest).startswith(plain_text(40))
        assert "Traceback" not in errors


def test_a_reader_that_leaves_ends_the_reply_quietly(pair: list[str]) -> None:
    args = [*pair[:4], "-c", "100000", "-t", "1", "--raw", "-p", END_NOW]
    with started(*args) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.read(50)
        child.stdout.close()
        errors = child.stderr.read()
        assert child.wait(60) in (0, 141)
        assert "Traceback" not in errors
        child.stderr.close()


@pytest.mark.parametrize("command", [[], ["check"]])
def test_strict_mode_says_how_it_verifies(pair: list[str], command: list[str]) -> None:
    """This target's recurrent state rules batches out; stdout holds the reply alone."""
    done = ds4chat(*command, *pair, "--raw", "-p", END_NOW, "-n", "6", "--mtp-strict")
    assert done.code == 0
    assert done.err == (
        "ds4chat: strict mode: verification is one token at a time: a recurrent state cannot be rolled back "
        "to compare.\n"
    )
    if not command:
        assert done.out == plain_text(6) + "\n"


@pytest.mark.parametrize("command", [["-p", END_NOW], ["check", "-p", END_NOW], ["bench", "--quick"]])
def test_what_llama_cpp_logs_goes_to_the_log_file(
    pair: list[str], tmp_path: Path, command: list[str]
) -> None:
    """This model makes llama.cpp warn while it loads; without a context for it, bench ends there."""
    args = [*pair[:4], "-c", "8", "-t", "1", "--log-file", tmp_path / "log"]
    done = ds4chat(*command, *args, env={"DS4CHAT_HOME": str(tmp_path / "home")})
    assert "llama_" in (tmp_path / "log").read_text()
    assert "llama_" not in done.err


def test_ctrl_c_keeps_the_answers_of_a_file_that_are_complete(pair: list[str], tmp_path: Path) -> None:
    """The model ends its reply to the first prompt at once, and that to the second one never."""
    (tmp_path / "prompts.txt").write_text(f"\u00e9\n{END_NOW}\n", encoding="utf-8")
    args = [*pair[:2], "-c", "100000", "-t", "1", "--raw", "--prompts-file", str(tmp_path / "prompts.txt")]
    with started(*args) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=120)
        assert child.returncode == 130
        assert (first, rest) == ("\n", "")
        assert errors == "ds4chat: Stopped. The answers above are complete; run it again for the rest.\n"


@pytest.mark.parametrize("command", ["one shot", "check"])
def test_json_holds_every_text_whatever_the_character_set(
    run_here: RunHere, tiny_dir: Path, command: str
) -> None:
    """The reply has the prompt's accent; ASCII has no letter for it, and JSON has an escape."""
    args: list[str | Path] = ["--demo"]
    if command == "check":
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        model = tiny.build("llama-speaker", tiny_dir, says=(" café",), special=(), template=template)
        args = ["check", "-m", model, "--lookup", "-c", "256"]
    args += ["-p", "Repeat: café", "-n", "8", "--json", "-t", "1"]
    narrow, wide = ds4chat(*args, env={"PYTHONIOENCODING": "ascii"}), run_here(*args)
    assert narrow.out.isascii()
    assert "é" in wide.out
    texts = [json.dumps(json.loads(done.out), ensure_ascii=False) for done in (narrow, wide)]
    assert [text.count("é") for text in texts] == [wide.out.count("é")] * 2


def test_a_drafter_given_up_on_the_way_is_said_once_and_stands_in_the_json(
    run_here: RunHere, tmp_path: Path
) -> None:
    target, support = tiny.build("llama", tmp_path), tiny.build("llama-draft", tmp_path, wrong_every=1)
    args = ["-m", target, "--mtp", support, "-c", "512", "-t", "1", "--raw", "-p", END_NOW, "-n", "100"]
    args += ["--mtp-draft", "1"]
    ran = run_here(*args, "--json")
    answer = json.loads(ran.out)
    assert answer["text"] == plain_text(100)
    assert answer["settings"]["drafter"] is None
    reason = answer["settings"]["off_reason"]
    assert "none of the first 64 drafts was accepted" in reason
    assert ran.err.count("MTP is off") == 1
    assert f"ds4chat: MTP is off: {reason}." in ran.err


@pytest.mark.parametrize("option", ["--mtp-timing", "--mtp-probe"])
def test_lines_on_stderr_begin_at_the_left_of_the_terminal_that_has_the_answer(
    pair: list[str], option: str
) -> None:
    terminal = Terminal(*pair, "-p", "hi", "-n", "12", "--temp", "0", option)
    terminal.child.expect(pexpect.EOF)
    shown = re.sub(r"\r[^\n]*\x1b\[K", "", terminal.child.before.decode()).splitlines()
    logged = [line for line in shown if "ds4chat: " in line]
    assert len(logged) > 1 and all(line.startswith("ds4chat: ") for line in logged), shown
    assert "" not in shown
    answer = ds4chat(*pair, "-p", "hi", "-n", "12", "--temp", "0", option).out
    assert "".join(line for line in shown if line not in logged) == answer.replace("\n", "")
