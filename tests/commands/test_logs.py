"""``ds4chat logs``: the conversations on the command line, safe for the terminal they are printed to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kits.stored_replies import ROOT, ended, keep, step, text

from ds4chat.commands.main import main
from ds4chat.engine.events import refused
from ds4chat.store import FILE_NAME, ModelIdentity, open_store
from ds4chat.store.recording import Request

EVIL = "\x1b]0;owned\x07\x1b[2J \u202eevil\u202c \u200bhidden \x9b31m 👩\u200d🔬"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with two conversations, the second one hostile."""
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    store = open_store(tmp_path / "home" / FILE_NAME)
    first = store.record(Request("Count to three.", model=ModelIdentity("/m/a.gguf", "Alpha")))
    first.append(step(0))
    keep(first, ended())
    second = store.record(Request(EVIL, model=ModelIdentity(f"/m/{EVIL}", EVIL)))
    keep(second, ended("cancelled", tail=f"answer {EVIL}"))
    store.close()
    return tmp_path / "home"


def plain(output: str) -> bool:
    """Nothing in it can steer a terminal, turn the writing or hide."""
    return all(char.isprintable() or char in "\n\t\u200d" for char in output)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["logs", *words])
    captured = capsys.readouterr()
    assert plain(captured.out) and plain(captured.err)
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


def test_list_names_every_conversation(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["2", "1"]
    assert "2 messages" in lines[1] and "Alpha" in lines[1] and lines[1].endswith("Count to three.")
    assert run(capsys, "list", "--model", "alp")[1].splitlines() == [lines[1]]
    assert run(capsys, "list", "--limit", "1")[1].splitlines() == [lines[0]]
    assert run(capsys, "list", "--model", "gamma") == (
        0,
        "",
        'ds4chat: no stored conversation has an answer of a model whose name contains "gamma".\n',
    )


def test_json_output_is_json_with_the_text_as_it_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(run(capsys, "list", "--json")[1])
    assert [(c["id"], c["messages"]) for c in listed] == [(2, 2), (1, 2)]
    assert listed[0]["models"] == [EVIL]
    shown = json.loads(run(capsys, "show", "2", "--json")[1])
    assert [m["text"] for m in shown["path"]] == [EVIL, f"answer {EVIL}"]
    (title, hit) = json.loads(run(capsys, "search", "three", "--json")[1])
    assert (title["message"], hit["role"]) == (None, "user")
    assert [hit["snippet"][a:b] for a, b in hit["matches"]] == ["three"]


def test_show_prints_the_path_and_what_drafting_did(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "show", "1")
    assert "Count to three." in out
    assert text([step(0)]).strip() in out
    assert "-- 3 tokens, 2 of 3 drafts (67 %)" in out
    _, out, _ = run(capsys, "show", "2")
    assert "\\x1b]0;owned\\x07" in out and "\\u202eevil" in out and "\\u200bhidden" in out
    assert "[stopped]" in out and "👩\u200d🔬" in out


def test_a_reply_cut_short_says_why(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was refused because its prompt is too long has nothing else to show."""
    why = "The prompt has 6 tokens and the context holds 5. Shorten it, or raise the context length (-c)."
    store = open_store(home / FILE_NAME)
    keep(store.record(Request("hello")), refused(1, why, "context"))
    keep(store.record(Request("go on")), ended("length"))
    keep(store.record(Request("broken")), refused(1, "It broke.\x1b[2J"))
    store.close()
    shown = run(capsys, "show", "3")[1].splitlines()
    assert (
        shown[-3].startswith("assistant [the prompt does not fit into the context], ")
        and shown[-1] == f"-- {why}"
    )
    assert "assistant [cut at its limit], " in run(capsys, "show", "4")[1]
    shown = run(capsys, "show", "5")[1].splitlines()
    assert shown[-3].startswith("assistant [failed], ") and shown[-1] == "-- It broke.\\x1b[2J"
    assert run(capsys, "export", "3", "--format", "md")[1].endswith(
        f"\n## Assistant\n\n\n*(the prompt does not fit into the context: {why})*\n"
    )
    assert run(capsys, "export", "4", "--format", "md")[1].endswith("\n*(cut at its limit)*\n")
    assert "*(" not in run(capsys, "export", "1", "--format", "md")[1]


def test_search_takes_words_as_they_are(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(run(capsys, "search", "count", "three")[1].splitlines()) == 2
    assert len(run(capsys, "search", '"count to"')[1].splitlines()) == 2
    assert run(capsys, "search", "count", "--model", "beta")[2] == "ds4chat: nothing was found.\n"
    assert run(capsys, "search", 'NEAR("x" OR *')[0] == 0
    assert "hidden" in run(capsys, "search", "hidden")[1]


def test_export_and_import_on_the_command_line(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "talk.json"
    code, out, err = run(capsys, "export", "2", "-o", str(file))
    assert (code, out, err) == (0, "", f"ds4chat: wrote {file}.\n")
    code, out, _ = run(capsys, "import", str(file))
    assert code == 0 and out.split()[0] == "3"
    assert json.loads(run(capsys, "show", "3", "--json")[1])["path"][1]["text"] == f"answer {EVIL}"

    code, _, err = run(capsys, "export", "1", "-o", str(file))
    assert (code, err) == (
        1,
        f"ds4chat: {file} exists already. Give another name. --force replaces it.\n",
    )
    assert run(capsys, "export", "1", "-o", str(file), "--force")[0] == 0
    assert json.loads(run(capsys, "export", "1", "--format", "json")[1]) == json.loads(file.read_text())
    assert len(run(capsys, "export", "1", "--format", "jsonl")[1].splitlines()) == 3
    assert run(capsys, "export", "1", "--format", "md")[1].startswith('---\ntitle: "Count to three."\n')


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "takes list, show, search, export or import"),
        (("purge\x1b[2J",), 'purge\\x1b[2J" is not one of them'),
        (("show",), "number of one conversation"),
        (("show", "x"), 'not "x"'),
        (("show", "0"), "from 1 up"),
        (("show", "9" * 5000), "from 1 up"),
        (("show", "1", "2"), "number of one conversation"),
        (("list", "x"), "no further word"),
        (("list", "--limit", "-1"), "from 1 up"),
        (("list", "--limit", ""), 'from 1 up, not ""'),
        (("search", "x", "--limit", ""), 'from 1 up, not ""'),
        (("export", "1", "-o", ""), "needs --format"),
        (("list", "--format", "md"), "--format goes with export"),
        (("search",), "needs the TEXT"),
        (("export", "1"), "needs --format"),
        (("export", "1", "-o", "talk.txt"), "needs --format"),
        (("export", "1", "--format", "pdf"), "takes md, json or jsonl"),
        (("import",), "takes one FILE"),
        (("list", "--jsn"), "is not an option"),
    ],
)
def test_a_wrong_command_is_a_sentence_and_exit_code_2(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("show", "77"),
            'no conversation 77. "ds4chat logs list" lists them; in the chat, Ctrl+B does.\n',
        ),
        (("export", "77", "--format", "md"), "There is no conversation 77"),
        (
            ("import", "missing.json"),
            "cannot be read. Give a file that ds4chat exported as json. The system says: no such file",
        ),
        (("import", "/dev/null"), "can be imported. Give a file that ds4chat exported as json.\n"),
        (("import", __file__), "got `str`. Give a file that ds4chat exported as json.\n"),
        (("export", "1", "--format", "md", "-o", ""), "is a folder. Give the name of a file in it."),
        (("export", "1", "-o", "/proc/nowhere/talk.md"), "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_exit_code_1(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    assert says in err


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_pipe_is_never_replaced_by_an_export(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], force: tuple[str, ...]
) -> None:
    """Nor is a device: as root, the rename of a finished file would take its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert run(capsys, "export", "1", "--format", "md", "-o", str(pipe), *force) == (
        1,
        "",
        f"ds4chat: {pipe} cannot be written. Choose another place. "
        "The system says: it is not a regular file.\n",
    )
    assert pipe.is_fifo() and sorted(os.listdir(tmp_path)) == ["home", "pipe"]


def test_an_import_that_is_refused_makes_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "none"))
    for name in ("missing.json", __file__):
        assert run(capsys, "import", name)[0] == 1
    assert not (tmp_path / "none").exists()


def test_a_first_import_makes_the_database(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "talk.json"
    assert run(capsys, "export", "2", "-o", str(file))[0] == 0
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "new"))
    assert run(capsys, "import", str(file))[1].split()[0] == "1"
    assert len(run(capsys, "list")[1].splitlines()) == 1


def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run(capsys, "-h")[1]
    assert "  export ID " in out and max(map(len, out.splitlines())) <= 80


def test_looking_makes_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "none"))
    assert run(capsys, "list")[2] == "ds4chat: no conversations are stored here.\n"
    assert run(capsys, "search", "x")[0] == 0
    assert run(capsys, "show", "1")[0] == 1
    assert not (tmp_path / "none").exists()


def test_a_listing_loads_neither_numpy_nor_the_engine(home: Path) -> None:
    code = "import sys; from ds4chat.commands.main import main; main(['logs', 'list']); print(*sys.modules)"
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "ds4chat.commands.logs" in loaded
    assert not loaded & {"numpy", "textual", "llama_cpp", "ds4chat.engine.session"}
