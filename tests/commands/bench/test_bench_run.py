"""Bench and check on the real engine with constructed models."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tiny
from kits.engine import load_of, opened
from kits.json_schema import validate
from msgspec import structs

from ds4chat.commands import bench, check
from ds4chat.commands.arguments import UsageError
from ds4chat.commands.bench import command, runs
from ds4chat.commands.bench.plan import FEWEST_TOKENS, QUICK, Plan, plan_of
from ds4chat.commands.bench.report import report
from ds4chat.commands.bench.result import BenchDocument
from ds4chat.commands.bench.running import BenchError
from ds4chat.commands.bench.runs import Measurement, Run
from ds4chat.commands.bench.workloads import workloads
from ds4chat.commands.options import BenchOptions, OneShotOptions
from ds4chat.engine.drafters.base import Draft
from ds4chat.engine.drafters.model import DraftModel
from ds4chat.engine.events import Depth, Load, LoadError
from ds4chat.engine.llama import LlamaError
from ds4chat.engine.session import Session
from ds4chat.engine.stats import PositionCount
from ds4chat.errors import UserFacingError
from ds4chat.settings.schema import Settings

KINDS = ["chat", "code", "list", "rewrite", "story"]


def settings_for(folder: Path, name: str, **more: Any) -> Settings:
    load = load_of(folder, name)
    made = Settings(model=load.model, mtp=load.support, ctx_size=512, threads=1)
    return replace(made, **more)


def test_five_kinds_of_prompts_are_shipped_about_six_each() -> None:
    assert [w.name for w in workloads()] == KINDS
    assert all(len(w.prompts) == 6 and len(set(w.prompts)) == 6 for w in workloads())


def test_bench_prints_its_json_and_saves_the_same(
    tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    settings = settings_for(tiny_dir, "llama-draft")
    assert bench.run(settings, BenchOptions(json=True, quick=True, save=str(path))) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    validate(result, "BenchDocument")
    assert json.loads(path.read_text(encoding="utf-8")) == result
    assert str(path) in err
    assert [p.name for p in tmp_path.iterdir()] == ["bench.json"]
    assert result["drafter"]["kind"] == "draft-model"
    assert len(result["verify_cost"]) >= 9 and result["verify_cost"][0] == 1.0
    assert [w["name"] for w in result["workloads"]] == KINDS
    for workload in result["workloads"]:
        assert workload["plain"]["tokens_per_s"] > 0
        assert [f["depth"] for f in workload["fixed"]][:3] == [1, 2, 4]
        for fixed in workload["fixed"]:
            judged = sum(p["judged"] for p in fixed["by_position"])
            accepted = sum(p["accepted"] for p in fixed["by_position"])
            assert fixed["acceptance"] == pytest.approx(accepted / judged, abs=1e-4)
            assert fixed["same_text"][0] == fixed["same_text"][1] > 0
            assert fixed["limit_share"] == pytest.approx(fixed["ratio"] / fixed["limit"], abs=1e-3)
    assert result["memory"]["peak_rss_bytes"] is None or result["memory"]["peak_rss_bytes"] > 1 << 20
    assert result["advice"].endswith(".")


def test_the_table_and_the_picture_fit_into_80_columns(
    tiny_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(tiny_dir, "llama-draft", lookup=True)
    assert bench.run(settings, BenchOptions(quick=True, plot=True)) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if not line.startswith(("model ", "machine "))]
    assert max(map(len, lines)) <= 80
    assert "lookup+draft-model" in out and "█" in out
    assert "model file" not in out, "the size is that of the weights; the file is larger"
    for name in KINDS:
        assert f"{name} (" in out
    assert "MTP" in out.rsplit("\n\n", 1)[1]


def test_many_depths_fit_into_80_columns_too(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The columns that do not fit are below the others, with the same labels."""
    assert bench.run(settings_for(tiny_dir, "llama-draft"), BenchOptions(quick=True, json=True)) == 0
    result = msgspec.json.decode(capsys.readouterr().out, type=BenchDocument)
    for text in result.workloads:
        counts = [PositionCount(judged=4, accepted=4) for _ in range(16)]
        text.fixed[:] = [
            structs.replace(text.fixed[0], depth=depth, by_position=counts[:depth])
            for depth in (1, 2, 3, 4, 6, 8, 12, 16)
        ]
    written = report(result)
    lines = [line for line in written.splitlines() if not line.startswith(("model ", "machine "))]
    assert max(map(len, lines)) <= 80
    table = next(part for part in written.split("\n\n") if part.startswith("chat (")).splitlines()
    names = [line.split() for line in table if line.startswith("chat (")]
    assert names[0][2:] == ["plain", "1", "2", "3", "4", "6", "8", "12", "16"]
    assert names[1][2] == "a"
    assert [line.startswith("  tok/s ") for line in table].count(True) == 2
    positions = written[written.index("accepted at position, depth 16") :].splitlines()
    assert positions[1].split() == [str(n) for n in range(1, 10)]
    assert positions[1 + 1 + len(KINDS)].split() == [str(n) for n in range(10, 17)]


def test_without_a_drafter_bench_measures_plain_decoding_and_says_what_to_give(
    tiny_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(tiny_dir, "llama-draft", mtp="")
    assert bench.run(settings, BenchOptions(quick=True, json=True)) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["drafter"] is None
    assert all(w["fixed"] == [] and w["auto"] is None for w in result["workloads"])
    assert "--mtp FILE" in result["advice"] and "--lookup" in result["advice"]


def test_a_stopped_measurement_keeps_what_it_has(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as kit:
        seen: list[str] = []

        def progress(done: int, total: int, what: str) -> None:
            seen.append(what)
            if what.startswith("code, depth"):
                measurement.stop()

        measurement = Measurement(
            kit.session,
            Settings(),
            workloads(),
            replace(QUICK, budget_s=1e6, deadline_s=1e6),
            progress=progress,
        )
        measured = measurement.run()
    assert measurement.stopped
    assert {run.workload for run in measured.runs} == {"chat"}
    assert [run.depth for run in measured.runs] == [0, 1, 2, 4, "auto", 0]


@pytest.mark.parametrize(
    ("gain_to", "depths"), [(2, [1, 2]), (4, [1, 2, 4]), (16, [1, 2, 4, 6])], ids=["none", "one", "all"]
)
def test_it_goes_deeper_as_long_as_the_deepest_gains(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, gain_to: int, depths: list[int]
) -> None:
    """On every kind of text, at first on the prompts that the other depths have answered, and with the cost
    of as many rows as that takes. A depth that does not gain is the last."""

    def gains(measured: list[Run]) -> bool:
        return max(run.depth for run in measured if run.depth != "auto") < gain_to

    monkeypatch.setattr(runs, "deepest_gains", gains)
    monkeypatch.setattr(runs, "VERIFY_ROWS", 4)
    plan = Plan((1, 2), (4, 6), rounds=2, tokens=16, budget_s=1e6, deadline_s=1e6)
    with opened(load_of(tiny_dir, "llama-draft")) as kit:
        measured = Measurement(kit.session, Settings(), workloads()[:2], plan).run()
    tried = {(run.workload, run.prompt, run.depth) for run in measured.runs if run.depth != "auto"}
    assert tried == {(name, at, depth) for name in KINDS[:2] for at in (0, 1) for depth in (0, *depths)}
    assert len(measured.verify_ms) == max(4, depths[-1] + 1)


def test_a_deeper_depth_that_was_stopped_on_the_way_is_left_out(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one kind of text has it by then: nothing could be said over all of them."""
    monkeypatch.setattr(runs, "deepest_gains", lambda measured: True)

    def progress(done: int, total: int, what: str) -> None:
        if what == "code, depth 4":
            measurement.stop()

    plan = Plan((1, 2), (4,), rounds=1, tokens=16, budget_s=1e6, deadline_s=1e6)
    with opened(load_of(tiny_dir, "llama-draft")) as kit:
        measurement = Measurement(kit.session, Settings(), workloads()[:2], plan, progress=progress)
        measured = measurement.run()
    assert {run.depth for run in measured.runs} == {0, 1, 2, "auto"}
    assert {run.workload for run in measured.runs} == {"chat", "code"}


def test_no_reply_profits_from_the_one_before(tiny_dir: Path) -> None:
    """The same prompt at the same depth twice: the second run has the counters of the first, so lookup has
    seen nothing of it."""
    with opened(load_of(tiny_dir, "llama-draft", lookup=True)) as kit:
        plan = replace(QUICK, depths=(2, 2), rounds=1, budget_s=1e6, deadline_s=1e6)
        measured = Measurement(kit.session, Settings(), workloads()[:1], plan).run()
    first, second = (run for run in measured.runs if run.depth == 2)
    assert first.ids == second.ids
    assert [s.drafted for s in first.steps] == [s.drafted for s in second.steps]
    assert [s.drafter for s in first.steps] == [s.drafter for s in second.steps]


def test_a_place_that_cannot_be_saved_to_is_refused_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="does not exist"):
        bench.run(Settings(model="x"), BenchOptions(save=str(tmp_path / "no" / "f.json")))
    with pytest.raises(BenchError, match="is a folder"):
        bench.run(Settings(model="x"), BenchOptions(save=str(tmp_path)))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write into")
def test_a_folder_that_takes_no_file_is_refused_before_measuring() -> None:
    """The model does not exist: had anything been loaded first, that would be the sentence."""
    with pytest.raises(BenchError) as refused:
        bench.run(Settings(model="x"), BenchOptions(save="/proc/bench.json"))
    assert str(refused.value) == (
        "/proc/bench.json cannot be written: No such file or directory. Name another file with --save FILE."
    )


@pytest.mark.skipif(sys.platform == "win32", reason="has no named pipes in folders")
def test_a_pipe_is_refused_before_measuring_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(BenchError) as refused:
        bench.run(Settings(model="x"), BenchOptions(save=str(pipe)))
    assert str(refused.value) == (
        f"{pipe} cannot be written: It is not a regular file. Name another file with --save FILE."
    )
    assert pipe.is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_trying_a_place_leaves_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    file.write_text("kept")
    with pytest.raises(UserFacingError, match="x does not exist"):
        bench.run(Settings(model="x"), BenchOptions(save=str(file)))
    assert file.read_text() == "kept" and [path.name for path in tmp_path.iterdir()] == ["before.json"]


def test_the_reply_length_is_the_one_asked_for(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """-n N is the most tokens of a reply instead of the plan's 128 or 64; below 16 it is refused, since
    no speed is taken from so few."""
    for options, tokens in ((BenchOptions(), 128), (BenchOptions(quick=True), 64)):
        assert plan_of(options).tokens == tokens
        assert plan_of(options, 20).tokens == 20
    with pytest.raises(UsageError, match=r"-n 15 is too short .* bench takes -n 16 or more"):
        bench.run(Settings(model="x", predict=15), BenchOptions())
    plans: list[Plan] = []

    def noted(session: Session, settings: Settings, texts: Any, plan: Plan, **more: Any) -> Measurement:
        plans.append(plan)
        return Measurement(session, settings, texts, plan, **more)

    monkeypatch.setattr(command, "Measurement", noted)
    settings = settings_for(tiny_dir, "llama-draft", mtp="", predict=16)
    assert bench.run(settings, BenchOptions(quick=True, json=True)) == 0
    assert [plan.tokens for plan in plans] == [16]
    assert json.loads(capsys.readouterr().out)["complete"]


def test_json_keeps_every_letter_where_stdout_is_not_utf8(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "Müller.gguf"
    shutil.copy(tiny.build("llama", tiny_dir), model)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", errors="replace"))
    settings = Settings(model=str(model), ctx_size=512, threads=1, predict=16)
    assert bench.run(settings, BenchOptions(quick=True, json=True)) == 0
    sys.stdout.flush()
    assert json.loads(written.getvalue())["model"]["path"] == str(model)


def test_a_short_budget_gives_every_kind_of_text_one_short_block(tiny_dir: Path) -> None:
    with opened(load_of(tiny_dir, "llama-draft")) as kit:
        plan = replace(QUICK, depths=(1,), budget_s=0.0, deadline_s=1e6)
        measured = Measurement(kit.session, Settings(), workloads(), plan).run()
    assert [run.workload for run in measured.runs if run.depth == 1] == KINDS
    assert max(len(run.ids) for run in measured.runs) <= FEWEST_TOKENS


def test_nothing_goes_on_past_the_deadline(tiny_dir: Path) -> None:
    """A clock that jumps past the deadline during the second kind of text: its replies are broken off."""
    late = False

    def progress(done: int, total: int, what: str) -> None:
        nonlocal late
        late = late or what.startswith("code, depth")

    with opened(load_of(tiny_dir, "llama-draft")) as kit:
        plan = replace(QUICK, budget_s=1e6, deadline_s=1e6)
        measured = Measurement(
            kit.session,
            Settings(),
            workloads(),
            plan,
            progress=progress,
            clock=lambda: 2e6 if late else 0.0,
        ).run()
    assert {run.workload for run in measured.runs} == {"chat"}


def test_a_drafter_given_up_on_the_way_is_the_reason_in_the_json_and_the_advice(
    tiny_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object) -> Draft:
        raise LlamaError("its cache is damaged.")

    monkeypatch.setattr(DraftModel, "draft", failing)
    assert bench.run(settings_for(tiny_dir, "llama-draft"), BenchOptions(quick=True, json=True)) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["drafter"] is None
    assert "the drafter failed 3 times in a row" in result["off_reason"]
    assert result["off_reason"] in result["advice"]
    assert not result["advised"]["pays"]


def test_bench_loads_for_the_deepest_draft_that_it_measures(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[Depth] = []

    def noted(load: Load, *args: Any, **more: Any) -> None:
        depths.append(load.depth)
        raise LoadError("that is enough")

    monkeypatch.setattr(command, "open_session", noted)
    settings = settings_for(tiny_dir, "qwen35-nextn", mtp_draft=1)
    for quick in (True, False):
        with pytest.raises(LoadError):
            bench.run(settings, BenchOptions(quick=quick))
    assert depths == [4, 8]


# ------------------------------------------------------------------------------------ check


def test_check_says_when_the_drafter_was_given_up(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_for(tiny_dir, "llama-draft", mtp_draft=1, predict=80)
    settings = replace(settings, mtp=str(tiny.build("llama-draft", tiny_dir, wrong_every=1)))
    assert check.run(settings, OneShotOptions(" end now", json=True, raw=True)) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["drafter"] is None and "none of the first 64 drafts" in result["off_reason"]
    assert f"MTP is off: {result['off_reason']}." in err


def test_check_finds_exact_replies_equal(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_for(tiny_dir, "llama-draft", mtp_draft=3, predict=40)
    assert check.run(settings, OneShotOptions(None)) == 0
    out = capsys.readouterr().out
    assert out.count("Equal: all ") == 3
    assert "3 of 3 replies equal plain decoding" in out


def test_check_reports_the_first_difference_of_an_approximate_reply(
    tiny_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At margin 0 every draft is accepted, the wrong ones too."""
    settings = settings_for(tiny_dir, "llama-draft", mtp_draft=3, mtp_margin=0.0, predict=40)
    assert check.run(settings, OneShotOptions("hello", json=True, raw=True)) == 1
    result = json.loads(capsys.readouterr().out)
    validate(result, "CheckDocument")
    (reply,) = result["replies"]
    assert (result["equal"], result["lossless"], reply["tie"]) == (False, False, False)
    difference = reply["difference"]
    assert difference["mtp"]["id"] != difference["plain"]["id"]
    assert reply["compared"] == difference["index"] + 1
    assert "approximate" in reply["sentence"]


def test_check_without_a_drafter_says_that_there_is_nothing_to_check(
    tiny_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.run(settings_for(tiny_dir, "llama-draft", mtp=""), OneShotOptions("hello")) == 1
    assert "nothing to check" in capsys.readouterr().err
