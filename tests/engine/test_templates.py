"""Chat templates are programs of strangers: each of these tries to get out, or to take all there is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from kits.engine import END_NOW, opened
from tiny import vocab

from ds4chat.engine import templates
from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Ended, Generate, Load, Loaded, Message
from ds4chat.engine.prompting import PromptError
from ds4chat.engine.templates import TemplateError, TemplateProcess

TURNS = [{"role": "user", "content": "hi"}]
GOOD = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DEEP = "{% set ns = namespace(t=[1]) %}{% for i in range(60) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}"
TWO_DEEP = (
    "{% set a = namespace(t=[1]) %}{% set b = namespace(t=[1]) %}{% for i in range(60) %}"
    "{% set a.t = [a.t, a.t] %}{% set b.t = [b.t, b.t] %}{% endfor %}"
)

ESCAPES = {
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a class by subscript": "{{ messages['__class__'] }}",
    "a class by filter": "{{ ''|attr('__class__') }}",
    "a class by map": "{{ ['']|map(attribute='__class__')|list }}",
    "a class by format": "{{ '{0.__class__}'.format('') }}",
    "a class by format_map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "globals of a function": "{{ raise_exception.__globals__ }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__ }}",
    "code of a generator": "{{ (messages|map('upper')).gi_frame.f_back }}",
    "an import": "{% import 'os' as os %}",
    "an include": "{% include '/etc/passwd' %}",
    "a changed conversation": "{{ messages.append(1) }}",
    "a changed turn": "{{ messages[0].update({'content': 'x'}) }}",
    "the environment": "{{ self._TemplateReference__context.environment }}",
}
GREEDY = {
    "a long text": "{{ 'a' * 10**9 }}",
    "a long text by a method": "{{ 'a'.ljust(10**9) }}",
    "a long text by a filter": "{{ 'a'|center(10**9) }}",
    "a long text by a format": "{{ '%1000000000d' % 1 }}",
    "a text that doubles": "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "a block that doubles": "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}"
    "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
    "a long list": "{{ ([0] * 10**9)|length }}",
    "much output": "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
    "a long range": "{% for i in range(10**9) %}{% endfor %}",
    "a macro without an end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a recursive loop": "{% set l = [[]] %}{% for i in l recursive %}{{ loop(l) }}{% endfor %}",
    "deep brackets": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
}
ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a power": "{{ (7 ** (10 ** 9)) % 2 }}",
    "a power in a filter": "{{ 1.5|round(10**9, 'ceil') }}",
    "a deep list as text": DEEP + "{{ ns.t }}",
    "a deep comparison": TWO_DEEP + "{{ a.t == b.t }}",
}


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    process = TemplateProcess()
    yield process
    process.close()


def rendered(process: TemplateProcess, template: str) -> str:
    process.open(template, "<s>", "</s>")
    return process.render(TURNS, {"enable_thinking": False})


@pytest.mark.parametrize("template", ESCAPES.values(), ids=ESCAPES)
def test_no_way_out_of_the_sandbox(process: TemplateProcess, template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(process, template)
    assert str(caught.value)
    assert rendered(process, GOOD) == "<user>hi"


@pytest.mark.parametrize("template", GREEDY.values(), ids=GREEDY)
def test_no_more_memory_output_or_depth_than_a_prompt_needs(process: TemplateProcess, template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(process, template)
    assert "did not end" not in str(caught.value)  # refused for what it takes, not for its time
    assert rendered(process, GOOD) == "<user>hi"


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_no_more_time_than_a_prompt_needs(
    process: TemplateProcess, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one operation takes the time, which no signal interrupts."""
    monkeypatch.setattr(templates, "TEMPLATE_SECONDS", 1.0)
    with pytest.raises(TemplateError, match="did not end within 1 seconds"):
        rendered(process, template)
    monkeypatch.undo()
    assert rendered(process, GOOD) == "<user>hi"


def test_what_honest_templates_use_works(process: TemplateProcess) -> None:
    template = """
{%- if tools is not none %}{{ raise_exception('no') }}{% endif -%}
{{ bos_token }}{% generation %}{{ '-' * 3 }}{% endgeneration %}
{%- for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor -%}
{{ messages|tojson }}{{ strftime_now('%Y')|length }}{{ messages[0].content.strip().title() }}
{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}
{%- if add_generation_prompt %}{{ eos_token }}{% endif %}{{ enable_thinking }}"""
    wanted = '<s>---01[{"role": "user", "content": "hi"}]4Hi1</s>False'
    assert rendered(process, template) == wanted


def test_a_text_that_utf8_cannot_say_comes_back(process: TemplateProcess) -> None:
    process.open(GOOD, "", "")
    assert process.render([{"role": "user", "content": "a\udc80ü\0"}], {}) == "<user>a\udc80ü\0"


def test_a_long_conversation_is_rendered(process: TemplateProcess) -> None:
    process.open(GOOD, "", "")
    turns = [{"role": "user", "content": "word " * 200_000}] * 20  # 20 MB, more than MAX_OUTPUT
    assert len(process.render(turns, {})) == 20 * 1_000_006


def test_a_process_that_was_killed_is_replaced(process: TemplateProcess) -> None:
    assert rendered(process, GOOD) == "<user>hi"
    assert process._process is not None
    process._process.kill()
    with pytest.raises(TemplateError, match="SIGKILL"):
        process.render(TURNS, {})
    assert process.render(TURNS, {}) == "<user>hi"


def test_the_process_leaves_with_whoever_started_it(tmp_path: Path) -> None:
    """Also when that one is killed."""
    script = f"""
from ds4chat.engine.templates import TemplateProcess
p = TemplateProcess()
p.open({GOOD!r}, "", "")
print(p._process.pid, flush=True)
input()
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    os.kill(pid, 0)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _runs(pid):
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def with_template(template: str, path: Path, folder: Path) -> Path:
    """The constructed target with another chat template."""
    good, old, new = tiny.build("llama", folder).read_bytes(), vocab.CHAT_TEMPLATE.encode(), template.encode()
    assert good.count(old) == 1
    assert len(new) <= len(old)
    path.write_bytes(good.replace(old, new + b" " * (len(old) - len(new))))
    return path


@pytest.fixture
def hostile(tiny_dir: Path, tmp_path: Path) -> Path:
    """A model file whose template never ends."""
    return with_template("{{ 7 ** (10 ** 9 * messages|length) }}", tmp_path / "hostile.gguf", tiny_dir)


def test_a_one_shot_says_that_the_template_does_not_end(hostile: Path) -> None:
    command = [sys.executable, "-m", "ds4chat", "-m", str(hostile), "-p", "hi", "-c", "256", "-t", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "template failed on this conversation: it did not end within 5 seconds" in ended.stderr
    assert "--raw" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_engine_process_says_so_too_and_goes_on(hostile: Path, tmp_path: Path) -> None:
    client = EngineClient(tmp_path / "engine.log")
    client.start()
    try:
        client.send(Load(str(hostile), ctx=256, threads=1))
        assert client.wait_for(Loaded, 60)[0]
        client.send(Generate(1, messages=(Message("user", "hi"),)))
        ended, _ = client.wait_for(Ended, 60)
        assert isinstance(ended, Ended)
        assert "did not end within 5 seconds" in ended.detail
        client.send(Generate(2, prompt=END_NOW, max_tokens=3))
        ended, _ = client.wait_for(Ended, 60)
        assert isinstance(ended, Ended)
        assert ended.finish_reason == "length"
    finally:
        client.close()


def test_a_template_that_refuses_the_system_turn_gets_it_in_the_users(tiny_dir: Path, tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    path = with_template(template + "{{ m.content }}{% endfor %}", tmp_path / "strict.gguf", tiny_dir)
    with opened(Load(str(path), ctx=256, threads=1)) as bench:
        turns = [Message("system", " sun"), Message("user", " sea")]
        prompt = bench.session.prompter.chat(turns, think=True)
        model = bench.session.target.model
        text = b"".join(model.piece(t) for t in prompt.tokens).decode()
        assert text.split() == ["sun", "sea"]


def test_a_template_that_cannot_be_read_says_so_and_what_to_do(tiny_dir: Path, tmp_path: Path) -> None:
    """The conversation becomes plain lines, and the note names both ways out."""
    path = with_template("{% for m in messages %}", tmp_path / "broken.gguf", tiny_dir)
    with opened(Load(str(path), ctx=256, threads=1)) as bench:
        note = bench.session.prompter.note
    assert "The model's chat template cannot be used (" in note
    assert "'User:' and 'Assistant:' lines" in note
    assert note.endswith(
        "get a newer file of the model, which most often has a mended template, or choose another model."
    )


def test_a_renderer_that_cannot_be_started_is_not_blamed_on_the_model(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer file of the model would help nothing here: the system does not let Python run."""
    python = tmp_path / "python"
    python.write_text("")
    python.chmod(0o600)
    path = with_template("{% for m in messages %}{{ m.content }}{% endfor %}", tmp_path / "m.gguf", tiny_dir)
    monkeypatch.setattr(sys, "executable", str(python))
    with opened(Load(str(path), ctx=256, threads=1)) as bench:
        note = bench.session.prompter.note
    assert note == (
        f"The process that renders the model's chat template did not start ({python}: Permission denied), so "
        "the conversation is written as 'User:' and 'Assistant:' lines. Its replies "
        "may be the worse for it: free memory or processes, let this user run Python, and start "
        "ds4chat again."
    )


def test_a_renderer_that_does_not_come_up_is_not_blamed_on_the_conversation(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the model was loaded, was ended since, and its successor leaves at once."""
    path = with_template("{% for m in messages %}{{ m.content }}{% endfor %}", tmp_path / "m.gguf", tiny_dir)
    with opened(Load(str(path), ctx=256, threads=1)) as bench:
        prompter = bench.session.prompter
        assert prompter.note == "" and prompter._templates is not None
        prompter._templates.close()
        monkeypatch.setattr(sys, "executable", shutil.which("false"))
        with pytest.raises(PromptError) as failed:
            prompter.chat([Message("user", " sun")], think=True)
    assert str(failed.value) == (
        "The process that renders the model's chat template did not start (its process left with exit code "
        "1): free memory or processes, let this user run Python, and start ds4chat again."
    )
