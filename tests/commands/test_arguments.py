"""What the command line takes, what it refuses and in which sentence, and what reaches the part it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ds4chat.commands import bench, chat
from ds4chat.commands import main as cli
from ds4chat.commands.arguments import UsageError
from ds4chat.commands.ds4_differences import DIFFERENCES
from ds4chat.commands.options import BenchOptions, OneShotOptions
from ds4chat.settings.schema import OPTIONS, Settings
from ds4chat.settings.validate import range_of


def read(*argv: str) -> dict[str, Any]:
    """The settings that these arguments give."""
    return chat.parser("").read(argv)[0].settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty DS4CHAT_HOME, none of ds4's variables, and a standard input that holds nothing."""
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))
    for option in OPTIONS:
        if option.env:
            monkeypatch.delenv(option.env, raising=False)
    monkeypatch.setattr(sys, "stdin", None)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "settings"),
    [
        (["-m", "a.gguf"], {"model": "a.gguf"}),
        (["--mtp"], {"mtp": "embedded"}),
        (["--mtp", "s.gguf"], {"mtp": "s.gguf"}),
        (["--mtp-model", "s.gguf"], {"mtp": "s.gguf"}),
        (["--mtp", "-m", "a"], {"mtp": "embedded", "model": "a"}),
        (["--mtp", ""], {"mtp": ""}),
        (["--mtp-draft=auto"], {"mtp-draft": "auto"}),
        (["-n", "-1", "-s", "-1"], {"predict": -1, "seed": -1}),
        (["-n5"], {"predict": 5}),
        (
            ["-ngl", "3", "-sm", "row", "-ctk", "q8_0"],
            {"gpu-layers": 3, "split-mode": "row", "cache-type-k": "q8_0"},
        ),
        (["--n-gpu-layers", "0", "-fa", "on"], {"gpu-layers": 0, "flash-attn": "on"}),
        (["--mtp-strict", "--no-mtp-strict"], {"mtp-strict": False}),
        (["--nothink"], {"think": False}),
        (["--think"], {"think": True}),
        (["--no-mtp-keep-accepted"], {"mtp-keep-accepted": False}),
        (["--temp", "1", "--temp", "0.5"], {"temp": 0.5}),
        (["-sys", "- be brief"], {"system-prompt": "- be brief"}),
    ],
)
def test_options_are_read_as_in_llama_cpp_and_ds4(argv: list[str], settings: dict[str, Any]) -> None:
    assert read(*argv) == settings


@pytest.mark.parametrize("text", ["- one thing", "-n items", "-1 + 2 = ?", "-test", "--x", "\u00e9\n"])
def test_a_prompt_may_begin_with_anything(text: str) -> None:
    given, words = chat.parser("").read([f"--prompt={text}", "--json"])
    assert (given.prompt, given.json, words) == (text, True, [])
    given, words = chat.parser("").read(["-p", text, "--json"])
    assert (given.prompt, given.json, words) == (text, True, [])


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--mtp-draft", "17"], "--mtp-draft 17 is out of range: it takes 1 to 16, or auto."),
        (["-n", "x"], "-n x is not a whole number: it takes -1 or more."),
        (["-n"], "-n/--n-predict/--predict needs N."),
        (
            ["--mtp-margin", "2"],
            "--mtp-margin 2 is out of range: it is a probability ratio from 0 to 1; ds4's logit gap is "
            "--mtp-gate here.",
        ),
        (["--mtp-margin", "nan"], "--mtp-margin nan is not a finite number: it takes 0 to 1."),
        (
            ["--mtp-drat", "3"],
            "--mtp-drat is not an option; did you mean --mtp-draft? ds4chat -h lists them.",
        ),
        (["--mtp-dra", "3"], "--mtp-dra is not an option; did you mean --mtp-draft? ds4chat -h lists them."),
        (["--xyzzy"], "--xyzzy is not an option; ds4chat -h lists them."),
        (["-mtp", "f"], "-mtp is not an option; did you mean --mtp?"),
        (["-temp=1"], "-temp is not an option; did you mean --temp?"),
        (["--quality"], "--quality is not an option of ds4chat: ds4's exact kernels are --mtp-strict here."),
        (["-md", "f"], "-md is not an option of ds4chat: it is --mtp here."),
        (["-m"], "-m/--model needs FILE (one that begins with a dash is written --model=FILE)."),
        (["--mtp-strict=1"], "--mtp-strict/--no-mtp-strict takes no value."),
        (["--parallel", "0", "--prompts-file", "f"], "--parallel 0 is out of range: it takes 1 to 256."),
        (["--parallel", "2"], "--parallel goes with --prompts-file FILE."),
        (["--json"], "--json goes with a prompt: give one with -p."),
        (["--ignore-eos"], "--ignore-eos goes with a prompt: give one with -p."),
        (["--continue", "-p", "a"], "--continue opens the chat: leave the prompt out."),
        (
            ["-p", "a", "--prompt-file", "f"],
            "-p and --prompt-file both give the prompt: leave one of them out.",
        ),
        (
            ["-p", "a", "--prompts-file", "f"],
            "--prompts-file has its own prompts: leave out -p and --prompt-file.",
        ),
        (["--demo", "-m", "a", "-p", "b"], "--demo and -m both name the model: leave one of them out."),
        (
            ["config", "write", "--demo", "-m", "a"],
            "--demo and -m both name the model: leave one of them out.",
        ),
        (
            ["-m", "a\udcff.gguf", "-p", "b"],
            "-m a\\udcff.gguf is not valid UTF-8: convert the text, or rename the file.",
        ),
        (["--x\x1b[31m"], "--x\\x1b[31m is not an option; ds4chat -h lists them."),
        (
            ["-p", "a"],
            "There is no model: name a file with -m FILE or a server with --server URL, or use --demo.",
        ),
        (["-p", ""], "The prompt is empty: give a text with -p, --prompt-file or through a pipe."),
        (["-p", " \n"], "The prompt is empty: give a text with -p, --prompt-file or through a pipe."),
        (["-p", "a\udcff"], "The prompt given with -p is not valid UTF-8 at byte 1: convert it to UTF-8."),
        ([], "The chat needs a terminal, and this is not one: give a prompt with -p TEXT."),
        (
            ["hello"],
            '"hello" is not a command, and a prompt needs -p: ds4chat -p "...". ds4chat -h says more.',
        ),
        (
            ["bnech"],
            '"bnech" is not a command, and a prompt needs -p: ds4chat -p "...". Did you mean the command '
            "bench? ds4chat -h says more.",
        ),
        (["-m", "a", "bench"], "The command comes first: ds4chat bench ..."),
        (
            ["-m", "a", "hi"],
            '"hi" is not a command, and a prompt needs -p: ds4chat -p "...". ds4chat -h says more.',
        ),
        (["inspect"], "ds4chat inspect takes FILE and optionally SUPPORT; or --demo."),
        (
            ["inspect", "a", "--demo"],
            "--demo inspects the demo's files: leave out FILE, or --demo.",
        ),
        (
            ["inspect", "a", "--jsn"],
            "--jsn is not an option; did you mean --json? ds4chat inspect -h lists them.",
        ),
        (["convert-mtp", "a", "b"], "ds4chat convert-mtp takes three files: MAIN SUPPORT OUT."),
        (["bench", "x", "-m", "a"], 'ds4chat bench takes options only, not "x".'),
        (
            ["bench"],
            "There is no model: name a file with -m FILE or a server with --server URL, or use --demo.",
        ),
        (
            ["check"],
            "There is no model: name a file with -m FILE or a server with --server URL, or use --demo.",
        ),
        (["config"], "ds4chat config takes path, show, defaults, check or write. It needs one of them."),
        (
            ["config", "chekc"],
            'ds4chat config takes path, show, defaults, check or write. "chekc" is not one of them. Did you '
            "mean check?",
        ),
        (["config", "path", "x"], '"x" is not a folder of ds4chat: choose config, data, cache or log.'),
        (["config", "show", "x"], 'ds4chat config show takes no further word "x".'),
        (["config", "defaults", "--temp", "1"], "--temp goes with show and write, not with defaults."),
        (["config", "show", "--force"], "--force goes with write, not with show."),
        (
            ["config", "check", "a", "--config", "b"],
            "ds4chat config check a does not use --config: leave it out.",
        ),
        (
            ["logs", "export", "1", "--format", "xml"],
            "--format xml is not known: it takes md, json or jsonl.",
        ),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused_in_one_sentence(
    home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], sentence: str
) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"ds4chat: {sentence}\n")


def test_every_option_is_in_the_help_with_its_default_and_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["-h"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        if option.kind == "table":
            assert f"--{option.key}" not in text
            continue
        assert f"--{option.key}" in text
        assert option.env in text
        assert all(flag in text for flag in (*option.flags, *option.off_flags))
        if option.kind in ("int", "float"):
            assert f"{option.help} [{range_of(option)}; default {option.default}" in text
    for names, difference in DIFFERENCES:
        assert f"{names} {difference}" in text


@pytest.mark.parametrize("command", ["", "inspect", "bench", "check", "convert-mtp", "config"])
def test_a_help_fits_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([*command.split(), "-h"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize("command", ["inspect", "bench", "check", "convert-mtp", "config"])
def test_each_command_has_its_own_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([command, "-h"], ["help", command], ["-h", command][::-1]):
        assert cli.main(argv) == 0
        assert capsys.readouterr().out.startswith(f"usage: ds4chat {command}")


@pytest.mark.parametrize("argv", [["-h"], ["config", "defaults"], ["--mtp-draft", "0"]])
def test_an_answer_that_needs_no_model_loads_nothing_heavy(argv: list[str]) -> None:
    code = (
        "import sys; from ds4chat.commands.main import main; main(sys.argv[1:]); "
        "heavy = {'textual', 'rich', 'numpy', 'gguf', 'llama_cpp', 'msgspec', 'jinja2', 'sqlite3'}; "
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "loaded: []", done.stderr


def started(monkeypatch: pytest.MonkeyPatch, target: str) -> list[tuple[Any, ...]]:
    """What the part at ``target`` is started with, instead of starting it."""
    import importlib

    module, name = target.rsplit(".", 1)
    calls: list[tuple[Any, ...]] = []

    def record(*args: Any, **more: Any) -> int:
        calls.append((*args, *more.values()))
        return 7

    monkeypatch.setattr(importlib.import_module(module), name, record)
    return calls


def test_the_one_shot_gets_the_settings_and_the_prompt(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = started(monkeypatch, "ds4chat.commands.oneshot.run")
    assert cli.main(["-m", "a", "-p", "hi\n", "--json", "--raw", "--ignore-eos", "-n", "3"]) == 7
    settings, shot, sources = calls[0]
    assert (settings, shot) == (
        Settings(model="a", predict=3),
        OneShotOptions("hi\n", json=True, raw=True, ignore_eos=True),
    )
    assert [key for key, source in sources.items() if source != "default"] == ["model", "predict"]


def test_many_prompts_come_from_lines_or_from_json_lines(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = started(monkeypatch, "ds4chat.commands.oneshot.run")
    lines, objects = home / "p.txt", home / "p.jsonl"
    lines.write_text("one\n\n  two \n")
    objects.write_text('"one\\nmore"\n{"prompt": "two"}\n')
    assert cli.main(["-m", "a", "--prompts-file", str(lines), "--parallel", "2"]) == 7
    assert cli.main(["-m", "a", "--prompts-file", str(objects)]) == 7
    assert [call[1] for call in calls] == [
        OneShotOptions(None, parallel=2, prompts=("one", "  two ")),
        OneShotOptions(None, parallel=1, prompts=("one\nmore", "two")),
    ]


@pytest.mark.parametrize(("text", "said"), [("", "has no prompts"), ("{}", "line 1"), ('"a"\n[', "line 2")])
def test_a_file_without_prompts_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (home / "p.jsonl").write_text(text)
    assert cli.main(["-m", "a", "--prompts-file", str(home / "p.jsonl")]) == 2
    assert said in capsys.readouterr().err


def test_a_command_gets_its_words_in_any_order_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = started(monkeypatch, "ds4chat.commands.convert.run")
    assert cli.main(["convert-mtp", "a", "b", "--force", "c"]) == 7
    assert calls == [("a", "b", "c", True)]


def test_the_options_of_a_bench() -> None:
    given, _ = bench.parser().read(["--save", "--quick", "--compare", "http://x", "-m", "a"])
    assert (given.save, given.quick, given.compare, given.settings) == ("", True, "http://x", {"model": "a"})
    given, _ = bench.parser().read(["--save", "f.json"])
    assert given.save == "f.json"
    given, _ = bench.parser().read([])
    assert BenchOptions() == BenchOptions(given.json, given.save, given.quick, given.plot, given.compare)


def test_the_problems_of_a_named_file_end_a_one_shot_and_those_of_ones_own_do_not(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = started(monkeypatch, "ds4chat.commands.oneshot.run")
    file = home / "config.toml"
    file.write_text("mtp-draft = 17\ntemp = 0.5\ntop-kk = 3\n")
    assert cli.main(["-m", "a", "-p", "b", "--config", str(file)]) == 2
    named = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in named] == [f"{file}, line 1", f"{file}, line 3"]
    assert calls == []
    assert cli.main(["-m", "a", "-p", "b"]) == 7
    assert capsys.readouterr().err.splitlines() == named
    assert calls[0][0] == Settings(model="a", temp=0.5)


def test_an_unforeseen_error_is_a_sentence_and_its_trace_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(argv: list[str]) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr("ds4chat.commands.logs.main", broken)
    assert cli.main(["logs"]) == 1
    assert capsys.readouterr().err == (
        f"ds4chat: Unexpected error: RuntimeError: boom. The traceback is in {home}/crash.log; "
        "please report it.\n"
    )
    assert "in broken" in (home / "crash.log").read_text()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (UsageError("No."), 2, "ds4chat: No.\n"),
        (
            OSError(28, "No space left on device", "/x\x1b"),
            1,
            "ds4chat: /x\\x1b: No space left on device. Change that, or name another place.\n",
        ),
        (
            OSError(5, "Input/output error"),
            1,
            "ds4chat: Something could not be read or written: Input/output error. Change that and run the "
            "command again.\n",
        ),
        (SystemExit(0), 0, ""),
    ],
)
def test_every_end_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    def ends(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("ds4chat.commands.logs.main", ends)
    assert cli.main(["logs"]) == code
    assert capsys.readouterr().err == said


def test_ones_own_file_can_be_written_shown_and_checked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "config.toml"
    assert cli.main(["config", "check"]) == 0
    assert cli.main(["config", "write", "--theme", "paper"]) == 0
    assert cli.main(["config", "write"]) == 2
    assert cli.main(["config", "write", "--force", "--temp", "0.5"]) == 0
    assert cli.main(["config", "check"]) == 0
    capsys.readouterr()
    assert cli.main(["config", "show", "--top-k", "3"]) == 0
    shown = capsys.readouterr().out
    for line in (
        'theme = "paper" # file',
        "temp = 0.5 # file",
        "top-k = 3 # command line",
        "seed = -1 # default",
    ):
        assert line in " ".join(shown.split())
    file.write_text("mtp-draft = 17\nx = 1\n")
    assert cli.main(["config", "check", str(file)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert cli.main(["config", "path"]) == 0
    assert capsys.readouterr().out == f"{file}\n"


def test_a_file_with_problems_is_written_anew_only_with_force_and_that_is_said(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--force keeps what could be read of the file, so the refusal says that the rest would be lost."""
    file = home / "config.toml"
    file.write_text("mtp-draft = 17\ntemp = 0.5\n")
    assert cli.main(["config", "write"]) == 2
    assert capsys.readouterr().err == (
        f"ds4chat: {file} exists already: --force rewrites it and keeps its values, except the "
        f"invalid ones. {file}, line 1: mtp-draft = 17 is out of range: it takes 1 to 16, or auto.\n"
    )
    assert file.read_text() == "mtp-draft = 17\ntemp = 0.5\n"
    assert cli.main(["config", "write", "--force"]) == 0
    assert "\ntemp = 0.5\n" in file.read_text()


def test_a_device_is_never_written_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As root, the rename of a finished file would take the device's place."""
    pipe = home / "pipe"
    os.mkfifo(pipe)
    assert cli.main(["config", "write", "--force", "--config", str(pipe)]) == 1
    assert capsys.readouterr().err == (
        f"ds4chat: The settings were not saved to {pipe}: It is not a regular file. The file is as it was; "
        "make its folder writable, or choose another file with --config FILE.\n"
    )
    assert pipe.is_fifo()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems ask elsewhere for the home folder")
@pytest.mark.parametrize(
    "argv",
    [["config", "path"], ["config", "show"], ["logs", "list"], ["-m", "a", "-p", "b"], ["check", "-m", "a"]],
)
def test_a_user_without_a_home_is_told_the_way_out(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container that runs under a user number of no account."""

    def no_account(number: int) -> None:
        raise KeyError(number)

    for name in (
        "HOME",
        "DS4CHAT_HOME",
        *(f"XDG_{kind}_HOME" for kind in ("CONFIG", "DATA", "CACHE", "STATE")),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_account)
    assert cli.main(argv) == 1
    assert capsys.readouterr() == (
        "",
        "ds4chat: This user has no home folder to keep files in: set DS4CHAT_HOME to a folder that can be "
        "written.\n",
    )
    assert cli.main(["config", "defaults"]) == 0


@pytest.mark.parametrize("where", ["command line", "words", "file"])
def test_an_empty_mtp_leaves_the_demos_support_model_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The demo's model is then named as any other, with nothing beside it; an empty mtp in the file is weaker
    than --demo on the command line, and the demo brings its own again."""
    calls = started(monkeypatch, "ds4chat.commands.oneshot.run")
    monkeypatch.setattr("ds4chat.models.demo.demo_model", lambda: Path("/demo.gguf"))
    if where == "file":
        (home / "config.toml").write_text('demo = true\nmtp = ""\n')
    argv = ["--demo", "--mtp", "none"] if where == "words" else ["--demo", "--mtp", ""]
    assert cli.main(["-p", "hi", *(argv if where != "file" else [])]) == 7
    assert cli.main(["-p", "hi", "--demo"]) == 7
    assert [(call[0].demo, call[0].model, call[0].mtp) for call in calls] == [
        (False, "/demo.gguf", ""),
        (True, "", ""),
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be removed there")
@pytest.mark.parametrize("argv", [["config", "path"], ["logs", "list"], ["-m", "a", "-p", "b"]])
def test_a_relative_home_in_a_folder_that_is_gone_is_told(argv: list[str], tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    run = (
        f"import os, sys; os.rmdir({str(place)!r}); "
        f"from ds4chat.commands.main import main; sys.exit(main({argv!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", run],
        cwd=place,
        env={**os.environ, "DS4CHAT_HOME": "x", "PYTHONPATH": str(Path(cli.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "ds4chat: DS4CHAT_HOME=x is relative to the current folder, which is gone. Set it to "
        "a whole path, such as /tmp/ds4chat.\n",
    )


def test_a_home_of_a_user_who_does_not_exist_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS4CHAT_HOME", "~no-such-user/x")
    assert cli.main(["config", "path"]) == 1
    assert capsys.readouterr().err == (
        "ds4chat: DS4CHAT_HOME=~no-such-user/x names the home folder of a user who has none. Set it to a "
        "whole path, such as /tmp/ds4chat.\n"
    )


@pytest.mark.parametrize("word", ["off", "on", "lookup"])
def test_a_word_of_the_chats_mtp_command_is_told_what_it_is_here(
    home: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert cli.main(["-m", "a.gguf", "--mtp", word, "-p", "hi"]) == 2
    assert f"--mtp {word} names no file: " in capsys.readouterr().err
