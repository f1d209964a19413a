"""The table of templates: what it counts, and that it sees a fault of each kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
END = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
TEMPLATES = {
    "plain": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}" + END,
    "typed": "{% for m in messages %}<|user|>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    + END,
    "turns": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('take turns') }}{% endif %}<|user|>{{ m.content }}{% endfor %}" + END,
    "last": "<|user|>{{ messages[-1].content }}" + END,
    "broken": "{% for m in messages %}",
}


def test_the_table_says_which_form_each_template_takes(tmp_path: Path) -> None:
    for name, template in TEMPLATES.items():
        (tmp_path / f"{name}.jinja").write_text(template, encoding="utf-8")
    command = [sys.executable, str(ROOT / "tools" / "templates.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "5 templates" in lines
    assert f"{tmp_path}/plain.jinja" not in lines
    assert "one turn: works 3, refused 1, as it is, typed parts 1" in lines
    assert "Esc: turns joined 2, refused 1, works 1, as it is, typed parts 1" in lines
    assert "three turns: works 2, refused 1, said 1, as it is, typed parts 1" in lines
    assert "special tokens: works 2, refused 1, said 1, as it is, typed parts 1" in lines
    told = "three turns: said: The chat template leaves out assistant and user turns"
    assert any(line.startswith(told) for line in lines)
