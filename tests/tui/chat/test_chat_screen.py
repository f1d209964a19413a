"""The chat screen by keys and mouse: an engine that replays, the real widgets."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from kits.chat import PIECES, ReplayEngine, ended, loaded, steps_of
from kits.chat_stage import Open
from kits.screen_stage import work_done
from textual import events
from textual.widgets import OptionList

from ds4chat.engine.events import EngineDied, Load, Loading, Notice, Replayed, Tuning
from ds4chat.files import write_whole
from ds4chat.settings.load import load
from ds4chat.tui.app import ChatApp, run
from ds4chat.tui.chat.screen import ChatScreen
from ds4chat.tui.command_table import COMMANDS
from ds4chat.tui.messages import TuningChanged
from ds4chat.tui.settings import file as settings_file
from ds4chat.tui.transcript import Transcript

# -- prompt to reply


async def test_a_prompt_is_answered_and_its_figures_shown(opened: Open) -> None:
    async with opened(size=(100, 30)) as chat:
        await chat.type("What is it?", "enter")
        shown = chat.shown()
        assert "What is it?" in shown
        assert "Speculative decoding lets a small model" in shown
        # 22 tokens in 250 ms; 20 ms a token is plain: 88 tok/s, 1.76 times; 12 of 15 judged.
        assert "22 tokens · 88.0 tok/s · 1.76× plain at load · 80% accepted" in shown
        assert "eagle3 depth 2  exact" in shown
        assert chat.prompt == ""


async def test_keys_are_taken_while_the_model_loads_and_the_prompt_goes_when_it_is_ready(
    opened: Open,
) -> None:
    async with opened(load=Loading("reading tiny.gguf", 0.4)) as chat:
        assert "loading" in chat.shown() and "40%" in chat.shown()
        await chat.type("early", "enter")
        assert "early" in chat.shown() and "sent when a model is loaded" in chat.shown()
        assert chat.engine.generates == []
        await chat.push(loaded())
        assert [g.messages[-1].content for g in chat.engine.generates] == ["early"]


async def test_esc_stops_and_keeps(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.push(*steps_of(1, PIECES[:4]))
        await chat.press("escape")
        await chat.settle()
        assert "Speculative decoding lets" in chat.shown()
        assert "stopped by you" in chat.shown()


async def test_prompts_wait_in_sight_come_back_with_up_and_with_stop(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.type("two", "enter")
        await chat.type("three", "enter")
        assert "⋯ two" in chat.shown() and "⋯ three" in chat.shown()
        await chat.press("up")
        assert chat.prompt == "three"
        await chat.press("escape")
        assert chat.prompt == "two\n\nthree"
        assert "⋯" not in chat.shown()


async def test_ctrl_c_copies_then_stops_then_quits_on_the_second_press(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.type("copied", "shift+home")
        await chat.press("ctrl+c")
        assert chat.app.clipboard == "copied"
        chat.screen.prompt.text_field.move_cursor((0, 0))
        await chat.press("ctrl+c")
        assert chat.app.chat.state == "ready"
        await chat.press("ctrl+c")
        assert "Ctrl+C again leaves" in chat.shown()
        assert chat.app.is_running
        await chat.pilot.press("ctrl+c")
        assert chat.app._exit


async def test_retry_answers_anew(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        await chat.press("f5")
        await chat.settle()
        assert len(chat.engine.generates) == 2
        assert chat.shown().count("Speculative decoding") == 1
        assert "the other reply is kept: Shift+F5 shows it" in chat.shown()


async def test_retry_says_where_the_earlier_reply_is(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        chat.screen.chat.conversation.key = 1
        await chat.press("f5")
        assert "the other reply is kept: Shift+F5 shows it" in chat.shown()


async def test_an_engine_death_keeps_the_text_says_why_and_f5_reloads(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        died = EngineDied(1, None, "SIGKILL", "The engine stopped: it was killed.", ())
        await chat.push(*steps_of(1, PIECES[:4]), died)
        shown = chat.shown()
        assert "Speculative decoding lets" in shown
        assert "cut off: the engine died" in shown
        assert "The engine stopped: it was killed." in shown and "F5 loads the model again" in shown
        await chat.press("f5")
        await chat.settle()
        assert sum(isinstance(c, Load) for c in chat.engine.sent) == 2
        assert "F5 loads" not in chat.shown() and "ready" in chat.shown()


async def test_why_speculation_is_off_stays_on_the_screen(opened: Open) -> None:
    async with opened(load=loaded(off_reason="The target has no NextN block.")) as chat:
        assert "MTP is off: The target has no NextN block." in chat.shown()
        await chat.type("one", "enter")
        assert "MTP is off: The target has no NextN block." in chat.shown()


async def test_without_a_model_the_screen_says_how_to_get_one(opened: Open) -> None:
    async with opened(model="") as chat:
        assert "No model is loaded." in chat.shown() and "/model chooses one" in chat.shown()


async def test_notices_of_weight_stand_in_the_transcript(opened: Open) -> None:
    async with opened() as chat:
        await chat.push(Notice("warning", "64 drafts, none accepted: MTP is off."))
        assert "64 drafts, none accepted" in chat.shown()


# -- tuning


async def test_depth_and_margin_keys_reach_a_running_reply_while_typing(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.type("half a prom")
        await chat.press("f8", "f9")
        assert [(t.depth, t.margin) for t in chat.engine.retunes] == [(3, 1.0), (3, 0.95)]
        assert "APPROXIMATE ≥0.95" in chat.shown()
        assert chat.prompt == "half a prom"
        await chat.press("f10", "f7")
        assert chat.app.chat.tuning == Tuning(depth=2)


async def test_pausing_remembers_the_depth_and_says_that_it_is_off(opened: Open) -> None:
    async with opened() as chat:
        await chat.press("f8", "ctrl+t")
        assert chat.app.chat.tuning.depth == 0
        assert "MTP is off: paused by you." in chat.shown()
        await chat.press("ctrl+t")
        assert chat.app.chat.tuning.depth == 3


async def test_the_last_change_is_undone(opened: Open) -> None:
    async with opened() as chat:
        await chat.press("f8", "ctrl+r")
        assert chat.app.chat.tuning.depth == 2


async def test_a_change_in_the_panel_is_sent_and_kept_for_saving(opened: Open) -> None:
    async with opened() as chat:
        chat.screen.dock_view.post_message(TuningChanged(Tuning(depth=5, temp=0.7)))
        await chat.settle()
        await chat.pilot.pause()
        assert chat.app.chat.tuning == Tuning(depth=5, temp=0.7)
        assert (chat.app.settings.mtp_draft, chat.app.settings.temp) == (5, 0.7)


async def test_what_was_changed_just_before_a_save_is_saved(opened: Open) -> None:
    """Also the depth that a pause left: the pause itself is not kept."""
    async with opened() as chat:
        await chat.press("f8", "ctrl+t")
        chat.screen.action_toggle_view()
        chat.app.action_save()
        await chat.searched()
        saved = load({}, chat.app.settings_file.path, {}).settings
        assert (saved.mtp_draft, saved.view) == (3, chat.app.settings.view) == (3, "markdown")
        assert chat.app.chat.tuning.depth == 0


async def test_what_is_saved_just_before_the_chat_is_left_is_written(opened: Open) -> None:
    async with opened() as chat:
        await chat.press("f8")
        await chat.pilot.press("ctrl+s", "ctrl+q")
    assert load({}, chat.app.settings_file.path, {}).settings.mtp_draft == 3


@pytest.mark.parametrize("disk", ["slow", "full", "silent"])
async def test_a_save_that_waits_for_another_when_the_chat_is_left(
    opened: Open, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    """A slow disk writes both; errors are printed at the end; nobody waits for a silent disk for ever."""
    writing, answered = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> None:
        writing.set()
        assert answered.wait(60)
        if disk == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(*args, **options)

    monkeypatch.setattr("ds4chat.settings.save.write_whole", slow)
    monkeypatch.setattr(settings_file, "LAST_WAIT", 0.05 if disk == "silent" else 60.0)
    async with opened() as chat:
        await chat.press("f8")
        await chat.pilot.press("ctrl+s")
        await asyncio.to_thread(writing.wait, 60)
        await chat.pilot.press("f8", "ctrl+s", "ctrl+q")
        if disk != "silent":
            asyncio.get_running_loop().call_later(0.1, answered.set)
    said = {
        "slow": "",
        "full": "The settings were not saved to {}: No space left on device. The file is as it was; make its "
        "folder writable, or choose another file with --config FILE.",
        "silent": "The settings may not have been saved: {} could not be written within 0.05 seconds. Check "
        "its disk.",
    }
    path = chat.app.settings_file.path
    assert chat.app.parting == said[disk].format(path)
    if disk == "slow":
        assert load({}, path, {}).settings.mtp_draft == 4
    answered.set()


async def test_a_change_in_a_running_reply_is_marked_where_it_took_effect(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        first = steps_of(1, PIECES[:4], tuning=Tuning(depth=2))
        then = steps_of(1, [("\nNext", "plain")], tuning=Tuning(depth=4), first=len(first))
        await chat.push(*first, *then)
        assert " ▲ Next" in chat.shown()
        await chat.push(ended(1))
        assert "▲ step 2: depth 2→4" in chat.shown()


# -- commands


async def test_commands_set_and_refuse(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/draft 4", "enter")
        assert chat.app.chat.tuning.depth == 4
        await chat.type("/margin 2", "enter")
        assert any("out of range" in message for message in chat.said())
        assert chat.prompt == "/margin 2"
        assert chat.app.chat.tuning.margin == 1.0


async def test_an_unknown_command_is_named_with_the_nearest_and_stays_to_be_mended(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/modle", "enter")
        assert any("Did you mean /model?" in message for message in chat.said())
        assert chat.prompt == "/modle"


async def test_completion_by_tab(opened: Open) -> None:
    async with opened() as chat:
        await chat.press("slash", "m", "a")
        assert "/margin [0..1]" in chat.shown()
        await chat.press("tab")
        assert chat.prompt == "/margin "
        await chat.press("0", "full_stop", "5", "enter")
        assert chat.app.chat.tuning.margin == 0.5


async def test_enter_sends_the_command_that_is_written(opened: Open, monkeypatch) -> None:
    """Never a suggested one of which it is a part, as /think is of /nothink."""
    run: list[str] = []
    monkeypatch.setattr(ChatScreen, "run_command", lambda self, text, **how: run.append(text))
    async with opened() as chat:
        for command in [c for c in COMMANDS if not c.needs_argument]:
            await chat.type(f"/{command.name}", "enter")
            assert [text.strip() for text in run] == [f"/{command.name}"]
            assert chat.prompt == ""
            run.clear()


async def test_completions_go_with_the_text_that_they_complete(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("/")
        assert chat.screen.prompt.menu.is_open
        await chat.press("backspace")
        assert not chat.screen.prompt.menu.is_open


async def test_esc_closes_the_completions_before_anything_else(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.press("slash", "m")
        await chat.press("escape")
        assert not chat.screen.prompt.menu.is_open
        assert chat.app.chat.reply is not None and chat.app.chat.state != "stopping"


async def test_new_undo_and_export(opened: Open, tmp_path: Path) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        await chat.type(f"/export {tmp_path}/talk.md", "enter")
        await chat.searched()
        assert "## User\n\none" in (tmp_path / "talk.md").read_text()
        await chat.type("/undo", "enter")
        assert chat.prompt == "one" and chat.app.chat.conversation.turns == []
        await chat.press("enter")
        await chat.type("/new", "enter")
        assert chat.transcript.is_empty


async def test_the_lossless_check_is_a_sentence(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        await chat.type("/check", "enter")
        await chat.push(
            Replayed(
                1, True, 22, -1, -1, -1, "", "", 0.0, "All 22 tokens are those of plain decoding.", 500.0
            )
        )
        shown = " ".join(chat.shown().split())
        assert "All 22 tokens are those of plain decoding." in shown
        assert "Plain decoding took 22.7 ms a token, 44.0 tok/s." in shown


async def test_read_puts_a_file_into_the_prompt_as_one_mark(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("alpha\nbeta\n")
    async with opened() as chat:
        await chat.type(f"/read {tmp_path}/notes.txt", "enter")
        await chat.searched()
        assert chat.prompt == "⟦notes.txt · 2 lines⟧"
        await chat.press("enter")
        assert "alpha\nbeta" in chat.engine.generates[0].messages[-1].content


# -- views


async def test_markdown_and_back(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.push(*steps_of(1, [("**bold", "plain"), ("**", "plain")]), ended(1))
        assert "**bold**" in chat.shown()
        await chat.press("f3")
        assert "bold" in chat.shown() and "**" not in chat.shown()
        await chat.press("f3")
        assert "**bold**" in chat.shown()


async def test_two_colours_explain_themselves(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        assert "corrected" in chat.shown()
        await chat.press("f6")
        assert "fallback" in chat.shown() and "corrected" not in chat.shown()


@pytest.mark.parametrize("width", [40, 80])
async def test_two_colours_in_markdown_name_the_key_that_shows_them(opened: Open, width: int) -> None:
    async with opened(size=(width, 24)) as chat:
        await chat.type("one", "enter")
        await chat.press("f3", "f6")
        assert "Markdown has no origins: F3 shows them" in chat.shown()
        await chat.press("f3")
        assert "fallback" in chat.shown()


async def test_thinking_is_folded_with_its_count_and_opens(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        thought = steps_of(
            1, [("<think>", "plain"), ("hmm", "accepted"), ("</think>", "bonus")], thinking=True
        )
        await chat.push(*thought, *steps_of(1, [("Yes", "plain")], first=2), ended(1))
        assert "▸ thinking · 3 tokens" in chat.shown() and "hmm" not in chat.shown()
        await chat.press("ctrl+o")
        assert "▾ thinking" in chat.shown() and "hmm" in chat.shown()


async def test_following_stops_when_the_user_scrolls_and_the_chip_says_how_to_resume(opened: Open) -> None:
    async with opened(answer=False) as chat:
        await chat.type("one", "enter")
        await chat.push(*steps_of(1, [(f"line {n}\n", "plain") for n in range(60)]))
        assert "line 59" in chat.shown() and "End: follow" not in chat.shown()
        await chat.press("pageup")
        await chat.pilot.pause()
        assert "line 59" not in chat.shown() and "▼ End: follow" in chat.shown()
        here = chat.transcript.scroll_offset.y
        await chat.push(*steps_of(1, [("more\n", "plain")], first=60))
        assert chat.transcript.scroll_offset.y == here
        await chat.press("end")
        await chat.pilot.pause()
        assert "more" in chat.shown() and "End: follow" not in chat.shown()


async def test_the_token_cursor_shows_the_row(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        await chat.press("f4")
        assert "← ↑ ↓ → move · Esc leaves" in chat.shown()
        assert "22/22" in chat.shown() and "bonus" in chat.shown()
        await chat.press("left", "left")
        shown = chat.shown()
        assert "20/22" in shown and "✗ rejected" in shown and "ratio 0.250" in shown and "gap 2.50" in shown
        assert "step 8" in shown and "verify 19.0" in shown
        await chat.press("escape")
        assert "20/22" not in chat.shown()
        assert chat.app.focused is chat.screen.prompt.text_field


async def test_a_click_picks_the_token_under_it(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        # Row 3 of the transcript is the reply's text; " decoding" is its third token.
        await chat.pilot.click(Transcript, offset=(3 + len("Speculative dec"), 3))
        await chat.settle()
        assert "3/22" in chat.shown() and "‘␣decoding’" in chat.shown()


async def test_a_mouse_selection_is_copied_without_gutters_and_wraps(opened: Open) -> None:
    async with opened(size=(40, 24)) as chat:
        await chat.type("one", "enter")
        await chat.pilot.mouse_down(Transcript, offset=(3, 3))
        await chat.pilot.hover(Transcript, offset=(20, 3))
        await chat.pilot.hover(Transcript, offset=(9, 4))
        await chat.pilot.mouse_up(Transcript, offset=(9, 4))
        await chat.settle()
        await chat.press("ctrl+c")
        # Row 3 ends with "a small "; the pointer ends on the "g" of "model guess" in row 4.
        assert chat.app.clipboard == "Speculative decoding lets a small model g"


async def test_typing_in_the_transcript_goes_to_the_prompt(opened: Open) -> None:
    async with opened() as chat:
        await chat.type("one", "enter")
        chat.transcript.focus()
        await chat.press("x", "y")
        assert chat.prompt == "xy"


# -- layout


async def test_panels_stand_beside_the_text_on_a_wide_screen_and_over_it_on_a_narrow_one(
    opened: Open,
) -> None:
    async with opened(size=(140, 45)) as chat:
        assert "Acceptance" in chat.shown()
        await chat.press("f2")
        assert "Acceptance" not in chat.shown()
        await chat.pilot.resize_terminal(80, 24)
        await chat.settle()
        await chat.press("f2")
        assert "Acceptance" in chat.shown()
        assert chat.app.focused is not chat.screen.prompt.text_field
        await chat.press("escape")
        assert "Acceptance" not in chat.shown()
        assert chat.app.focused is chat.screen.prompt.text_field


async def test_keys_go_to_what_is_in_sight_when_the_panels_open_over_the_text(opened: Open) -> None:
    """Never to a control below the screen's end: a key would change a setting that nobody sees."""
    async with opened(size=(80, 24)) as chat:
        await chat.press("f2")
        walked = []
        for _ in range(12):
            focused = chat.app.focused
            assert focused is not None and focused.region.height > 0
            assert chat.screen.dock_view.region.contains_region(focused.region), focused
            walked.append(focused)
            await chat.press("tab")
        assert walked[0] is chat.screen.dock_view.acceptance.title_bar
        assert chat.screen.dock_view.tuning.title_bar in walked
        assert chat.screen.chat.tuning == Tuning(depth=2)


async def test_any_size_shows_the_end_of_the_text_the_prompt_and_the_state(opened: Open) -> None:
    async with opened(size=(20, 5)) as chat:
        await chat.type("one", "enter")
        await chat.type("zw")
        for size in ((20, 5), (30, 8), (60, 12), (300, 100)):
            await chat.pilot.resize_terminal(*size)
            await chat.settle()
            shown = chat.shown()
            assert "pass" in shown and "zw" in shown and "● ready" in shown, size


# -- remapping


async def test_a_key_can_be_remapped(opened: Open) -> None:
    async with opened(keys={"chat.deeper": "ctrl+b"}) as chat:
        await chat.press("ctrl+b")
        assert chat.app.chat.tuning.depth == 3
        await chat.press("f8")
        assert chat.app.chat.tuning.depth == 3


async def test_enter_and_the_new_line_can_change_places(opened: Open) -> None:
    async with opened(keys={"prompt.send": "ctrl+j", "prompt.newline": "enter, alt+enter"}) as chat:
        await chat.type("one", "enter")
        assert chat.prompt == "one\n" and not chat.engine.generates
        await chat.type("two", "alt+enter")
        await chat.type("three", "ctrl+j")
        assert chat.engine.generates[-1].messages[-1].content == "one\ntwo\nthree"
        assert chat.prompt == ""


async def test_an_unknown_action_is_named_with_the_nearest(opened: Open) -> None:
    async with opened(keys={"chat.deepr": "ctrl+b"}) as chat:
        await chat.settle()
        await work_done(chat.pilot)
        assert any("chat.deepr" in m and "Did you mean chat.deeper?" in m for m in chat.said())


async def test_no_key_of_the_chat_is_one_that_terminals_keep_and_none_is_taken_twice(opened: Open) -> None:
    async with opened(size=(140, 45)) as chat:
        nodes = (chat.app, chat.screen, chat.screen.prompt.text_field)
        own = [(key, b) for node in nodes for key, b in node._bindings if b.id]
        keys = [key for key, b in own if not b.id.startswith("prompt.")]
        assert len(keys) == len(set(keys))
        assert not {key for key in keys if key.startswith("alt+")}
        # ctrl+s is kept by some terminals: what it does has a command too.
        assert {key for key in keys if key in ("ctrl+s", "ctrl+q", "ctrl+z")} == {"ctrl+s", "ctrl+q"}


async def test_help_lists_the_keys_and_the_commands(opened: Open) -> None:
    async with opened(size=(120, 60)) as chat:
        await chat.press("f1")
        await chat.pilot.pause()
        lines = chat.app.screen.query_one("#help-lines").text  # type: ignore[attr-defined]
        for words in (
            "Stop the reply",
            "Draft one token more",
            "chat.deeper",
            "/margin [0..1]",
            "prompt.newline",
        ):
            assert words in lines


async def test_a_paste_of_many_lines_is_one_prompt(opened: Open) -> None:
    async with opened() as chat:
        field = chat.screen.prompt.text_field
        field.post_message(events.Paste("a\nb\nc"))
        await chat.settle()
        assert chat.prompt == "a\nb\nc" and chat.engine.generates == []
        await chat.press("enter")
        assert [g.messages[-1].content for g in chat.engine.generates] == ["a\nb\nc"]


async def test_the_settings_screen_is_told_where_each_value_came_from(tmp_path, monkeypatch) -> None:
    """From the sources themselves: file, environment, command line; then changed in the chat, then saved."""
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    config = tmp_path / "c.toml"
    config.write_text("top-p = 0.5\nmtp-margin = 0.75\n", encoding="utf-8")
    given = load({"temp": "0.7"}, config, {"DS4_MTP_MIN_MARGIN": "0.25"})
    app = ChatApp(given.settings, ReplayEngine(), config_path=config, sources=given.sources)

    async def sources() -> dict[str, str]:
        app.action_settings()
        await pilot.pause()
        listed = app.screen.query_one(OptionList)
        rows = [listed.get_option_at_index(i) for i in range(listed.option_count)]
        await pilot.press("escape")
        return {row.id: str(row.prompt)[-12:].strip() for row in rows if row.id}

    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        first = await sources()
        assert (first["top-p"], first["mtp-margin"], first["temp"]) == ("file", "environment", "command line")
        assert first["min-p"] == "default"
        app.chat_screen.run_command("/set top-p 0.9")
        app.chat_screen.run_command("/set min-p 0.1")
        app.chat_screen.run_command("/margin 0.5")
        changed = await sources()
        assert [changed[key] for key in ("top-p", "min-p", "mtp-margin")] == ["set in chat"] * 3
        app.action_save()
        await work_done(pilot)
        saved = await sources()
        assert (saved["top-p"], saved["min-p"]) == ("file", "file")
        assert saved["mtp-margin"] == "set in chat", "at the next start the environment wins again"
        assert load({}, config, {}).settings.min_p == 0.1


async def test_the_command_line_hands_its_sources_to_the_chat(tmp_path, monkeypatch) -> None:
    """``run`` passes on what was read; without that the settings screen would call everything a default."""
    seen: list[ChatApp] = []
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path))
    monkeypatch.setattr(ChatApp, "run", lambda self: seen.append(self) or 0)
    given = load({"temp": "0.7"}, None, {})
    assert run(given) == 0
    assert seen[0].settings_file.sources["temp"] == "command line"
