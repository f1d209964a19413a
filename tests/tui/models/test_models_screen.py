"""The model picker over constructed GGUFs: what it finds, what pairs, what it posts."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import tiny
from kits.screen_stage import Host, work_done
from textual.widgets import Input, OptionList, Static

from ds4chat.models import demo, search
from ds4chat.models.search import (
    FoundModel,
    describe_file,
    distinct_names,
    gguf_files,
    ollama_models,
    search_folders,
    support_choices,
)
from ds4chat.tui.messages import DemoChosen
from ds4chat.tui.models.screen import ModelPicker


@pytest.fixture(autouse=True)
def no_store_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the Ollama models of whoever runs the tests."""
    monkeypatch.setattr(search, "OLLAMA_SERVICE", Path("/nonexistent"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)


def rows(app: Host) -> list[str]:
    options = app.sheet.query_one(OptionList)
    shown = [str(options.get_option_at_index(i).prompt) for i in range(options.option_count)]
    return [row for row in shown if row.split()[:1] != ["demo"]]


def detail(app: Host) -> str:
    return str(app.sheet.query_one(".model-detail", Static).content)


def picker_over(folder: Path, **more) -> ModelPicker:
    return ModelPicker(str(folder), home=folder / "nobody", **more)


# ---------------------------------------------------------------------------------------- looking


def test_files_are_found_once_and_later_parts_left_out(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.GGUF", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "x.txt"):
        (tmp_path / name).write_bytes(b"x")
    deep = tmp_path / "1/2/3"
    deep.mkdir(parents=True)
    (deep / "deep.gguf").write_bytes(b"y")
    (deep / "same.gguf").symlink_to(tmp_path / "b.gguf")
    (deep / "loop").symlink_to(tmp_path)
    (deep / "dangling.gguf").symlink_to(tmp_path / "gone")
    found = [path.name for path in gguf_files([(tmp_path, 6), (tmp_path, 6), (tmp_path / "none", 1)])]
    assert found == ["a.GGUF", "b.gguf", "big-00001-of-00002.gguf", "deep.gguf"]
    assert [p.name for p in gguf_files([(tmp_path, 2)])] == found[:3]
    assert list(gguf_files([(tmp_path, 6)], cancelled=lambda: True)) == []


def test_places_to_look_are_the_settings_the_models_own_and_the_usual(tmp_path: Path) -> None:
    setting = os.pathsep.join(["/a", "/b"])
    folders = [str(p) for p, _ in search_folders(setting, "/m/x.gguf", {"HF_HOME": "/hf"}, Path("/home/u"))]
    assert folders[:3] == ["/a", "/b", "/m"]
    assert "/home/u/models" in folders and "/home/u/.cache/llama.cpp" in folders
    assert folders[-1] == "/hf/hub"
    assert [str(p) for p, _ in search_folders("", "", {"HF_HUB_CACHE": "/hub"}, Path("/h"))][-1] == "/hub"


def test_a_bad_file_is_found_with_its_problem(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"PK\x03\x04" + b"\0" * 100)
    assert "not a GGUF" in describe_file(bad).problem
    assert "does not exist" in describe_file(tmp_path / "gone.gguf").problem


def test_ollamas_models_are_found_by_their_manifests(tiny_dir: Path, tmp_path: Path) -> None:
    """Names leave out the default registry and its library, as in Ollama; manifests that are not of a model,
    are missing or lead elsewhere are skipped."""
    store = tmp_path / ".ollama/models"
    data = tiny.build("llama", tiny_dir).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    (store / "blobs").mkdir(parents=True)
    (blob := store / "blobs" / f"sha256-{digest}").write_bytes(data)
    manifests = {
        "registry.ollama.ai/library/llama3/8b": f"sha256:{digest}",
        "hf.co/someone/tiny/latest": f"sha256:{digest}",
        "registry.ollama.ai/me/gone/1": f"sha256:{'0' * 64}",
        "registry.ollama.ai/me/evil/1": "sha256:../../../../etc/passwd",
    }
    for name, named in manifests.items():
        path = store / "manifests" / name
        path.parent.mkdir(parents=True)
        layers = [
            {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{digest}"},
            {"mediaType": "application/vnd.ollama.image.model", "digest": named},
        ]
        path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    (store / "manifests/registry.ollama.ai/me/evil/2").write_text("no JSON")
    assert ollama_models({}, tmp_path) == {blob: "hf.co/someone/tiny:latest"}
    (store / "manifests/hf.co/someone/tiny/latest").unlink()
    assert ollama_models({}, tmp_path) == {blob: "llama3:8b"}
    assert ollama_models({"OLLAMA_MODELS": str(store)}, tmp_path / "nobody") == {blob: "llama3:8b"}


def test_files_of_one_name_are_distinct_names() -> None:
    paths = [
        "/hub/models--user--repo/snapshots/0123456789abcdef/a.gguf",
        "/hub/models--other--repo/snapshots/0123456789abcdef/a.gguf",
        "/m/x/a.gguf",
        "/n/x/a.gguf",
        "/m/x/b.gguf",
    ]
    names = distinct_names([FoundModel(Path(path), 1) for path in paths])
    assert [names[Path(path)] for path in paths] == [
        "a.gguf · 01234567/user/repo",
        "a.gguf · 01234567/other/repo",
        "a.gguf · m/x",
        "a.gguf · n/x",
        "b.gguf",
    ]
    assert distinct_names([FoundModel(Path(path), 1) for path in paths[:2]]) == {
        Path(paths[0]): "a.gguf · user/repo",
        Path(paths[1]): "a.gguf · other/repo",
    }


def test_choices_say_what_fits_and_why_not(tiny_dir: Path) -> None:
    target = tiny.build("deepseek4", tiny_dir)
    support = tiny.build("deepseek4-support", tiny_dir)
    other = tiny.build("gemma4-assistant", tiny_dir)
    choices = {
        c.label: c for c in support_choices(target, [describe_file(p) for p in (support, other, target)])
    }
    assert choices["none"].fits and choices["lookup"].lookup
    assert choices[support.name].fits and choices[support.name].note.startswith("nextn-support, fits.")
    assert not choices[other.name].fits and choices[other.name].note
    assert target.name not in choices


# ---------------------------------------------------------------------------------------- the screen


async def test_target_then_support_are_chosen_by_keys(tiny_dir: Path, tmp_path: Path) -> None:
    target = tiny.build("deepseek4", tmp_path)
    support = tiny.build("deepseek4-support", tmp_path)
    app = Host(picker_over(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await work_done(pilot)
        assert len(rows(app)) == 1 and target.name in rows(app)[0] and "deepseek4" in rows(app)[0]
        assert str(target) in detail(app)
        await pilot.press("enter")
        await work_done(pilot)
        assert [row.split()[:2] for row in rows(app)] == [["✓", "none"], ["✓", "lookup"], ["✓", support.name]]
        await pilot.press("enter")
        await pilot.pause()
    assert [(c.model, c.support, c.lookup) for c in app.seen] == [(str(target), str(support), False)]
    assert app.results == app.seen


async def test_embedded_lookup_and_lookup_first(tmp_path: Path) -> None:
    target = tiny.build("qwen35-nextn", tmp_path)
    expected = [("none", "", False), ("lookup", "", True), ("NextN", "embedded", False)]
    for place, (label, support, lookup) in enumerate(expected):
        for toggled in (False, True):
            app = Host(picker_over(tmp_path))
            async with app.run_test(size=(80, 24)) as pilot:
                await work_done(pilot)
                await pilot.press("enter")
                await work_done(pilot)
                await pilot.press("home", *["down"] * place)
                assert rows(app)[place].split()[1] == label
                if toggled:
                    await pilot.press("ctrl+l")
                await pilot.press("enter")
                await pilot.pause()
            assert [(c.model, c.support, c.lookup) for c in app.seen] == [
                (str(target), support, lookup or toggled)
            ]


async def test_what_does_not_fit_cannot_be_taken_and_says_why(tmp_path: Path) -> None:
    tiny.build("deepseek4", tmp_path)
    tiny.build("gemma4-assistant", tmp_path)
    app = Host(picker_over(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await work_done(pilot)
        await pilot.press("enter")
        await work_done(pilot)
        await pilot.press("end")
        await pilot.pause()
        assert "does not fit" in rows(app)[-1]
        assert "gemma4-assistant" in detail(app).lower()
        await pilot.press("enter")
        await pilot.pause()
        assert app.seen == []
        await pilot.press("escape")
        await pilot.pause()
        assert app.sheet.query_one(Input).display and len(rows(app)) == 1
        await pilot.press("escape")
        await pilot.pause()
    assert app.results == [None]


async def test_filter_recent_current_and_bad_files(tmp_path: Path) -> None:
    first = tiny.build("deepseek4", tmp_path)
    second = tiny.build("llama", tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"nothing")
    app = Host(
        picker_over(tmp_path, current_model=str(second), recent=[str(first), str(tmp_path / "gone.gguf")])
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await work_done(pilot)
        assert [row[0] for row in rows(app)] == ["●", "↺", " "]
        assert "cannot be used" in rows(app)[2]
        await pilot.press(*["down"] * 3, "enter")
        await work_done(pilot)
        assert "broken.gguf is not a GGUF file" in detail(app)
        assert app.seen == [] and len(rows(app)) == 3
        await pilot.press(*"deepseek")
        await pilot.pause()
        assert len(rows(app)) == 1 and first.name in rows(app)[0]
        await pilot.press(*"zzz")
        await pilot.pause()
        assert rows(app) == [] and "No model here" in detail(app)


async def test_ollamas_model_is_shown_by_its_name(tmp_path: Path) -> None:
    data = tiny.build("llama", tmp_path / "built").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    store = tmp_path / "home/.ollama/models"
    (store / "blobs").mkdir(parents=True)
    (store / "blobs" / f"sha256-{digest}").write_bytes(data)
    manifest = store / "manifests/registry.ollama.ai/library/tiny/1b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    app = Host(ModelPicker("", home=tmp_path / "home"))
    async with app.run_test(size=(80, 24)) as pilot:
        await work_done(pilot)
        assert [row.split()[0] for row in rows(app)] == ["tiny:1b"]
        await pilot.press("enter")
        await work_done(pilot)
        assert rows(app)[0].split()[:2] == ["✓", "none"]


async def test_the_demo_is_offered_after_what_is_there(tmp_path: Path) -> None:
    tiny.build("llama", tmp_path)
    app = Host(picker_over(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await work_done(pilot)
        options = app.sheet.query_one(OptionList)
        assert str(options.get_option_at_index(1).prompt).split()[:2] == ["demo", "llama"]
        await pilot.press("down")
        await pilot.pause()
        assert "SmolLM2 135M Instruct" in detail(app)
        await pilot.press("enter")
        await work_done(pilot)
    assert [type(message) for message in app.seen] == [DemoChosen]
    assert app.results == [None]


async def test_a_demo_that_is_not_installed_says_how_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    app = Host(picker_over(tmp_path / "empty"))
    async with app.run_test(size=(80, 24)) as pilot:
        await work_done(pilot)
        assert 'pip install "ds4chat[demo]"' in detail(app)
        await pilot.press("enter")
        await work_done(pilot)
    assert app.seen == []


async def test_a_typed_path_is_taken_with_its_neighbours(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    target = tiny.build("deepseek4", elsewhere)
    support = tiny.build("deepseek4-support", elsewhere)
    app = Host(picker_over(tmp_path / "empty"))
    async with app.run_test(size=(100, 24)) as pilot:
        await work_done(pilot)
        app.sheet.query_one(Input).value = str(target)
        await pilot.press("enter")
        await work_done(pilot)
        assert any(support.name in row for row in rows(app))
        assert target.name in str(app.sheet.query_one(".sheet").border_title)


async def test_a_support_file_typed_as_target_says_what_it_is(tmp_path: Path) -> None:
    support = tiny.build("deepseek4-support", tmp_path)
    app = Host(picker_over(tmp_path / "empty"))
    async with app.run_test(size=(100, 24)) as pilot:
        await work_done(pilot)
        app.sheet.query_one(Input).value = str(support)
        await pilot.press("enter")
        await work_done(pilot)
        assert "NextN support model" in detail(app)
        assert app.sheet.query_one(Input).display


async def test_a_row_on_a_narrow_screen_is_one_line_with_the_size(tmp_path: Path) -> None:
    tiny.build("llama", tmp_path).rename(tmp_path / "a-model-with-a-rather-long-name.gguf")
    app = Host(picker_over(tmp_path))
    async with app.run_test(size=(40, 20)) as pilot:
        await work_done(pilot)
        (row,) = rows(app)
        width = app.sheet.query_one(OptionList).scrollable_content_region.width
        assert len(row) <= width and row.rstrip().endswith("B") and "…" in row
