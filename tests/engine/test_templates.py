"""Chat templates are programs of strangers: each of these tries to get out, or to take all there is."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kits.engine import END_NOW
from kits.templates import with_template

from ds4chat.engine import templates
from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Ended, Generate, Load, Loaded, Message
from ds4chat.engine.templates import BuiltinTemplate, JinjaTemplate, TemplateError

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


def rendered(template: str) -> str:
    variables = {"enable_thinking": False, "bos_token": "<s>", "eos_token": "</s>"}
    return JinjaTemplate(template).render(TURNS, variables, open_turn=True)


@pytest.mark.parametrize("template", ESCAPES.values(), ids=ESCAPES)
def test_no_way_out_of_the_sandbox(template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(template)
    assert str(caught.value)


@pytest.mark.parametrize("template", GREEDY.values(), ids=GREEDY)
def test_no_more_memory_output_or_depth_than_a_prompt_needs(template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(template)
    assert "did not end" not in str(caught.value)  # refused for what it takes, not for its time
    assert not caught.value.retry
    assert rendered(GOOD) == "<user>hi"


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_no_more_time_than_a_prompt_needs(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one operation of the interpreter takes the time."""
    monkeypatch.setattr(templates, "TEMPLATE_SECONDS", 0.3)
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TemplateError, match=r"did not end within 0\.3 seconds|nests lists"):
        rendered(template)
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_no_limit_outlives_a_rendering() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert rendered(GOOD) == "<user>hi"
    with pytest.raises(TemplateError):
        rendered("{{ 'a'.ljust(10**9) }}")
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(templates.MAX_MEMORY + 1)) > templates.MAX_MEMORY


def test_what_answers_to_no_limit_ends_the_process() -> None:
    """Lists nested by filters, compared inside the interpreter, which takes no signal there."""
    endless = """{% set a = namespace(t=[1]) %}{% set b = namespace(t=[1]) %}
{% for i in range(60) %}{% set a.t = (a.t + a.t)|batch(9)|list %}{% set b.t = (b.t + b.t)|batch(9)|list %}
{% endfor %}{{ a.t == b.t }}"""
    script = f"""
from ds4chat.engine import templates
templates.TEMPLATE_SECONDS = templates.BACKSTOP_SECONDS = 0.5
templates.JinjaTemplate({endless!r}).render([], {{}}, open_turn=True)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr and "<template>" in ended.stderr


def test_what_honest_templates_use_works() -> None:
    template = """
{%- if tools %}{{ raise_exception('no') }}{% endif -%}
{{ bos_token }}{% generation %}{{ '-' * 3 }}{% endgeneration %}
{%- for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor -%}
{{ messages|tojson }}{{ strftime_now('%Y')|length }}{{ messages[0].content.strip().title() }}
{%- set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}
{%- set d = dict(a=messages) %}{% for m in messages %}{% set m.seen = [m.role, d] %}{% endfor -%}
{{ messages[0].seen[0] }}{{ functions + 'f' + functions }}{{ date_string|length }} {{ datetime|length }}
{%- if add_generation_prompt %}{{ eos_token }}{% endif %}{{ enable_thinking }}"""
    wanted = '<s>---01[{"role": "user", "content": "hi"}]4Hi1userf11 11</s>False'
    assert rendered(template) == wanted


@pytest.mark.parametrize("none", ["is not none", "!= none", "is defined and tools is not none"])
@pytest.mark.parametrize("name", ["tools", "documents", "messages[0].tool_calls"])
def test_what_has_no_value_counts_as_none(name: str, none: str) -> None:
    """Templates are written for programs that give them none of these as none."""
    asked = none.replace("tools", name)
    template = f"{{% if {name} {asked} %}}{{{{ {name}|tojson }}}}{{% endif %}}" + GOOD
    assert rendered(template) == "<user>hi"
    assert (
        rendered(f"{{{{ {name} is none }}}} {{{{ {name} == 1 }}}} {{{{ 1 is none }}}}") == "True False False"
    )


def test_a_template_changes_its_own_copy_of_the_conversation() -> None:
    template = JinjaTemplate("{% for m in messages %}{{ m.seen }}{% set m.seen = 1 %}{% endfor %}")
    for _ in range(2):
        assert template.render(TURNS, {}, open_turn=True) == ""


def test_a_text_that_utf8_cannot_say_comes_back() -> None:
    template = JinjaTemplate(GOOD)
    turns = [{"role": "user", "content": "a\udc80ü\0"}]
    assert template.render(turns, {}, open_turn=True) == "<user>a\udc80ü\0"


def test_a_long_conversation_is_rendered() -> None:
    turns = [{"role": "user", "content": "word " * 200_000}] * 20  # 20 MB, more than MAX_OUTPUT
    assert len(JinjaTemplate(GOOD).render(turns, {}, open_turn=True)) == 20 * 1_000_006


def test_llama_cpps_own_templates_by_name() -> None:
    turns = [{"role": "system", "content": "sü"}, {"role": "user", "content": "hi" * 2000}]
    chatml = f"<|im_start|>system\nsü<|im_end|>\n<|im_start|>user\n{'hi' * 2000}<|im_end|>\n"
    template = BuiltinTemplate("chatml")
    assert template.render(turns, {}, open_turn=False) == chatml
    assert template.render(turns, {}, open_turn=True) == chatml + "<|im_start|>assistant\n"
    with pytest.raises(TemplateError, match="NUL"):
        template.render([{"role": "user", "content": "a\0b"}], {}, open_turn=True)
    with pytest.raises(TemplateError, match="as text only"):
        template.render([{"role": "user", "content": [{"type": "text", "text": "a"}]}], {}, open_turn=True)


HOSTILE = [
    pytest.param("{{ 'a'.ljust(10**9) }}", "it takes more than 512 MiB of memory", id="memory"),
    pytest.param(
        "{{ 7 ** (10 ** 9 * messages|length) }}",
        "it did not end within 5 seconds",
        id="time",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("template", "why"), HOSTILE)
def test_a_one_shot_says_what_is_wrong_with_a_hostile_template(
    template: str, why: str, tiny_dir: Path, tmp_path: Path
) -> None:
    path = with_template(template, tmp_path / "hostile.gguf", tiny_dir)
    command = [sys.executable, "-m", "ds4chat", "-m", str(path), "-p", "hi", "-c", "256", "-t", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"The chat template failed on this conversation: {why}." in ended.stderr
    assert "--chat-template FILE or NAME" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("template", "why"), HOSTILE)
def test_the_engine_process_says_so_too_and_goes_on(
    template: str, why: str, tiny_dir: Path, tmp_path: Path
) -> None:
    path = with_template(template, tmp_path / "hostile.gguf", tiny_dir)
    client = EngineClient(tmp_path / "engine.log")
    client.start()
    try:
        client.send(Load(str(path), ctx=256, threads=1))
        assert client.wait_for(Loaded, 60)[0]
        client.send(Generate(1, messages=(Message("user", "hi"),)))
        ended, _ = client.wait_for(Ended, 60)
        assert isinstance(ended, Ended)
        assert why in ended.detail
        client.send(Generate(2, prompt=END_NOW, max_tokens=3))
        ended, _ = client.wait_for(Ended, 60)
        assert isinstance(ended, Ended)
        assert ended.finish_reason == "length"
    finally:
        client.close()
