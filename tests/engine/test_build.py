"""The command that builds llama.cpp for a GPU, and whom it is told."""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import tiny

from ds4chat.engine import build
from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Event, Load, Loaded, Notice

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an NVIDIA card, as far as nvidia-smi in the path says so; its cache folder."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\n")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DS4CHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def told(*backends: str) -> list[Event]:
    events: list[Event] = []
    build.tell_of_idle_card(backends, events.append)
    return events


def test_the_command_builds_the_pinned_version_and_never_takes_a_wheel_that_pip_kept() -> None:
    setting, python, *rest = shlex.split(build.rebuild("GGML_CUDA"))
    assert setting == "CMAKE_ARGS=-DGGML_CUDA=on"
    assert (python, rest[:3]) == (sys.executable, ["-m", "pip", "install"])
    assert {"--no-cache-dir", "--force-reinstall", "--no-deps", "--no-binary"} <= set(rest)
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert rest[-1] in pinned and rest[-1].startswith("llama-cpp-python==")


def test_the_documentation_names_the_same_flags_and_version() -> None:
    """It says .venv/bin/pip for the Python that runs here."""
    command = build.rebuild("GGML_CUDA").replace(f"{shlex.quote(sys.executable)} -m pip", ".venv/bin/pip")
    page = (ROOT / "docs" / "gpu.md").read_text().replace("\\\n", " ")
    assert command in " ".join(page.split())


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("proc/driver/nvidia/gpus/0000:01:00.0/information", True),
        ("dev/nvidia0", True),
        ("proc/driver/nvidia/version", False),
        ("dev/nvidiactl", False),
        ("dev/dri/card0", False),
    ],
)
def test_a_card_is_found_by_what_the_driver_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, found: bool
) -> None:
    """A driver without a card has files as well."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not build.has_nvidia_card(tmp_path)
    file = tmp_path / made
    file.parent.mkdir(parents=True)
    file.touch()
    assert build.has_nvidia_card(tmp_path) is found


def test_a_card_is_found_by_its_tool(card: Path, tmp_path: Path) -> None:
    assert build.has_nvidia_card(tmp_path)


def test_it_is_told_once(card: Path) -> None:
    (notice,) = told("CPU")
    assert isinstance(notice, Notice) and build.rebuild("GGML_CUDA") in notice.message
    assert told("CPU") == []
    (card / build.TOLD).unlink()
    assert len(told("CPU", "BLAS", "RPC")) == 1


@pytest.mark.parametrize("backends", [("CUDA", "CPU"), ("Vulkan", "CPU"), ()])
def test_a_build_for_a_gpu_and_an_unknown_one_are_left_alone(card: Path, backends: tuple[str, ...]) -> None:
    assert told(*backends) == []
    assert not (card / build.TOLD).exists()


def test_what_cannot_be_kept_is_not_said_at_every_start(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card.write_text("no folder")
    assert told("CPU") == []


def test_the_engine_of_a_chat_tells_it(card: Path, tiny_dir: Path, tmp_path: Path) -> None:
    """Where this llama.cpp can use a GPU, there is nothing to tell."""
    from ds4chat.engine import llama

    idle = not {name for name, _ in llama.backends()} - build.WITHOUT_GPU
    load = Load(str(tiny.build("llama", tiny_dir)), ctx=64, threads=1)
    found = []
    for _ in range(2):
        client = EngineClient(tmp_path / "log")
        client.start()
        client.send(load)
        client.send(load)
        seen = client.wait_for(Loaded, 120)[1] + client.wait_for(Loaded, 120)[1]
        client.close()
        found.append(sum(isinstance(event, Notice) and "NVIDIA" in event.message for event in seen))
    assert found == [int(idle), 0]
