"""``get`` and ``-hf`` against a hub on loopback, with huggingface_hub's own code in between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from kits import gguf as kit
from kits import hub as hubs

REPO = "someone/Tiny-GGUF"


@pytest.fixture
def hub(tiny_dir: Path) -> Iterator[hubs.Hub]:
    """A hub whose repository holds a model in two quantisations, a split one, and a support file."""
    with hubs.serving() as hub:
        # Larger than what is taken from the network at once, several times.
        model = tiny.build("llama", tiny_dir).read_bytes() + bytes(2 << 20)
        hub.files[REPO] = {
            "README.md": b"words",
            "Tiny-Q4_K_M.gguf": model,
            "Tiny-Q8_0.gguf": tiny.build("llama-draft", tiny_dir).read_bytes(),
            "Tiny-EAGLE3-Q8_0.gguf": tiny.build("eagle3", tiny_dir).read_bytes(),
            "mmproj-Tiny-F16.gguf": b"other",
        }
        yield hub


def get(hub: hubs.Hub, home: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """One run of ds4chat with this hub."""
    return subprocess.run(
        [sys.executable, "-m", "ds4chat", *argv],
        env=hubs.environment(hub, home, **env),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def test_a_repository_alone_is_listed_and_nothing_is_fetched(hub: hubs.Hub, tmp_path: Path) -> None:
    done = get(hub, tmp_path, "get", REPO)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        ["Tiny-EAGLE3-Q8_0.gguf", "Q8_0"],
        ["Tiny-Q4_K_M.gguf", "Q4_K_M"],
        ["Tiny-Q8_0.gguf", "Q8_0"],
    ]
    assert not [path for _, path, _ in hub.asked if "/resolve/" in path]


def test_a_file_is_fetched_into_the_cache_and_what_drafts_for_it_is_named(
    hub: hubs.Hub, tmp_path: Path
) -> None:
    done = get(hub, tmp_path, "get", f"{REPO}:q4_k_m")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.read_bytes() == hub.files[REPO]["Tiny-Q4_K_M.gguf"]
    assert path == tmp_path / f"hub/models--someone--Tiny-GGUF/snapshots/{hubs.COMMIT}/Tiny-Q4_K_M.gguf"
    assert f"It drafts for it (eagle3): ds4chat get {REPO}:Tiny-EAGLE3-Q8_0.gguf" in done.stderr
    # The support file's header was read, the file itself was not fetched.
    assert all(span for span in hub.sent("Tiny-EAGLE3-Q8_0.gguf"))
    assert not list(tmp_path.rglob("*.incomplete"))


def test_the_support_file_comes_along_when_asked_for(hub: hubs.Hub, tmp_path: Path) -> None:
    done = get(hub, tmp_path, "get", f"{REPO}:Q4_K_M", "--with-support")
    model, support = map(Path, done.stdout.splitlines())
    assert support.read_bytes() == hub.files[REPO]["Tiny-EAGLE3-Q8_0.gguf"]
    assert f"ds4chat -m {model} --mtp {support}" in done.stderr


def test_a_cut_download_goes_on_where_it_stopped(hub: hubs.Hub, tmp_path: Path) -> None:
    """The first run is cut for good, as by a power cut: it is killed in the middle of the file."""
    data = hub.files[REPO]["Tiny-Q4_K_M.gguf"]
    hub.holds = True
    first = subprocess.Popen(
        [sys.executable, "-m", "ds4chat", "get", f"{REPO}:Q4_K_M", "--json"],
        env=hubs.environment(hub, tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    for line in first.stdout:
        if json.loads(line)["done"] > 1 << 19:
            break  # what came before this is in the file
    first.kill()
    first.wait()
    (part,) = tmp_path.rglob("*.incomplete")
    have = part.stat().st_size
    assert 0 < have < len(data)
    hub.holds = False
    hub.hold.set()
    hub.asked.clear()
    done = get(hub, tmp_path, "get", f"{REPO}:Q4_K_M")
    assert Path(done.stdout.strip()).read_bytes() == data
    assert hub.sent("Tiny-Q4_K_M.gguf") == [f"bytes={have}-"]


def test_ctrl_c_keeps_what_came(hub: hubs.Hub, tmp_path: Path) -> None:
    import signal

    hub.holds = True
    run = subprocess.Popen(
        [sys.executable, "-m", "ds4chat", "get", f"{REPO}:Q4_K_M", "--json"],
        env=hubs.environment(hub, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    for line in run.stdout:
        if json.loads(line)["done"]:
            break
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "the same command resumes from there" in said
    assert list(tmp_path.rglob("*.incomplete"))


def test_a_connection_that_is_cut_is_taken_up_again(hub: hubs.Hub, tmp_path: Path) -> None:
    data = hub.files[REPO]["Tiny-Q4_K_M.gguf"]
    hub.cut_after = len(data) * 2 // 3
    done = get(hub, tmp_path, "get", f"{REPO}:Q4_K_M")
    assert Path(done.stdout.strip()).read_bytes() == data, done.stderr
    assert len(hub.sent("Tiny-Q4_K_M.gguf")) == 2


def test_a_wrong_size_is_said_and_no_file_is_left_under_its_name(hub: hubs.Hub, tmp_path: Path) -> None:
    hub.declared["Tiny-Q4_K_M.gguf"] = len(hub.files[REPO]["Tiny-Q4_K_M.gguf"]) + 10
    done = get(hub, tmp_path, "get", f"{REPO}:Q4_K_M")
    assert (done.returncode, done.stdout) == (1, "")
    assert "announced one size" in done.stderr
    assert not list(tmp_path.rglob("*.gguf"))


def test_damaged_contents_are_refused_and_deleted(hub: hubs.Hub, tmp_path: Path) -> None:
    hub.tags["Tiny-Q4_K_M.gguf"] = "0" * 64
    done = get(hub, tmp_path, "get", f"{REPO}:Q4_K_M")
    assert done.returncode == 1
    assert "its checksum is not the hub's" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1000]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("nobody/nothing",), "no repository nobody/nothing, or it is private"),
        ((f"{REPO}:Q2_K",), "Q2_K names none of them: give someone/Tiny-GGUF:FILE.gguf"),
        (("tiny.gguf",), "tiny.gguf is not a repository of the hub. Give USER/REPO"),
        (("locked/Away-GGUF:Q8_0",), "is gated: accept its terms at "),
    ],
)
def test_what_cannot_be_had_is_said(hub: hubs.Hub, tmp_path: Path, argv: tuple[str, ...], said: str) -> None:
    hub.files["locked/Away-GGUF"] = {"Away-Q8_0.gguf": b"x"}
    hub.gated.add("locked/Away-GGUF")
    done = get(hub, tmp_path, "get", *argv)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_token_is_said(hub: hubs.Hub, tmp_path: Path) -> None:
    hub.token = "hf_good"
    done = get(hub, tmp_path, "get", REPO, HF_TOKEN="hf_bad")
    assert done.returncode == 1
    assert "The hub rejects the token" in done.stderr


def test_a_hub_that_is_not_there_is_said(hub: hubs.Hub, tmp_path: Path) -> None:
    done = get(hub, tmp_path, "get", REPO, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "The hub at http://127.0.0.1:9 cannot be reached" in done.stderr
    assert done.stderr.endswith("a proxy and HF_ENDPOINT, and run it again.\n"), "no part of a file is here"
    done = get(hub, tmp_path, "get", REPO, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in done.stderr
    assert hub.asked == []


def test_a_split_model_is_one_and_is_fetched_whole(hub: hubs.Hub, tmp_path: Path) -> None:
    """Both parts are valid GGUF files that say so."""
    parts = {}
    for number in range(2):
        tensors = kit.root() if number == 0 else {**kit.block(0), **kit.block(1)}
        keys = {"split.no": number, "split.count": 2}
        path = kit.write(tmp_path / f"p{number}.gguf", tensors=tensors, keys=keys)
        parts[f"Q4_K_M/Big-Q4_K_M-{number + 1:05}-of-00002.gguf"] = path.read_bytes()
    hub.files["someone/Big"] = parts
    listed = get(hub, tmp_path, "get", "someone/Big", "--json")
    assert listed.returncode in (0, 1)
    lines = [json.loads(line) for line in listed.stdout.splitlines()]
    assert lines[-1]["path"].endswith("Big-Q4_K_M-00001-of-00002.gguf")
    assert {path.name for path in tmp_path.rglob("Big-*.gguf")} == {name.split("/")[1] for name in parts}
    assert lines[0]["total"] == sum(map(len, parts.values()))


def test_a_part_that_is_missing_is_said(hub: hubs.Hub, tmp_path: Path) -> None:
    hub.files["someone/Big"] = {"Big-Q4_K_M-00001-of-00003.gguf": b"x"}
    done = get(hub, tmp_path, "get", "someone/Big:Q4_K_M")
    assert "is split, and 2 of its parts are not in someone/Big" in done.stderr


def test_a_search_marks_what_drafts(hub: hubs.Hub, tmp_path: Path, tiny_dir: Path) -> None:
    """By name for one repository, and for another from the first bytes of a file that has a NextN block."""
    hub.files["someone/Tiny-Plain"] = {"a-F16.gguf": tiny.build("deepseek4-nextn", tiny_dir).read_bytes()}
    hub.files["someone/Tiny-None"] = {"a-F16.gguf": tiny.build("llama", tiny_dir).read_bytes()}
    done = get(hub, tmp_path, "get", "--search", "tiny", "--json")
    found = {row["repo"]: row["marks"] for row in json.loads(done.stdout)["repositories"]}
    assert found == {REPO: ["EAGLE-3"], "someone/Tiny-Plain": ["NextN"], "someone/Tiny-None": []}
    assert hub.sent("someone/Tiny-Plain/resolve/main/a-F16.gguf") == ["bytes=0-131071"]
    assert hub.sent("Tiny-Q4_K_M.gguf") == []


def test_names_of_the_hub_cannot_steer_the_terminal(hub: hubs.Hub, tmp_path: Path) -> None:
    hub.files["someone/Evil"] = {
        "a\x1b]0;owned\x07-Q8_0.gguf": b"x",
        "b-Q8_0.gguf": b"x",
        "../../outside-Q8_0.gguf": b"x",
    }
    done = get(hub, tmp_path, "get", "someone/Evil")
    assert "\x1b" not in done.stdout + done.stderr
    assert "a\\x1b]0;owned\\x07-Q8_0.gguf" in done.stdout
    assert "outside" not in done.stdout


def test_hf_loads_what_it_names_and_asks_nothing_the_second_time(hub: hubs.Hub, tmp_path: Path) -> None:
    first = get(hub, tmp_path, "-hf", REPO, "-p", "a", "-n", "2", "-c", "64", "-t", "1")
    assert first.returncode == 0, first.stderr
    assert [path.name for path in tmp_path.rglob("*.gguf")] == ["Tiny-Q4_K_M.gguf"]
    hub.asked.clear()
    second = get(hub, tmp_path, "-hf", f"{REPO}:Q4_K_M", "-p", "a", "-n", "2", "-c", "64", "-t", "1")
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert hub.asked == []
    offline = get(hub, tmp_path, "-hf", REPO, "-p", "a", "-n", "2", "-c", "64", "-t", "1", HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout) == (0, first.stdout)


def test_hf_and_m_do_not_go_together(hub: hubs.Hub, tmp_path: Path) -> None:
    done = get(hub, tmp_path, "-hf", REPO, "-m", "a.gguf", "-p", "a")
    assert done.returncode == 2
    assert "-hf, -m, --demo and --server all name the model" in done.stderr
    assert hub.asked == []
