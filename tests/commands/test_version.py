"""``--version``: ds4chat's, and what llama.cpp runs on here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ds4chat import __version__
from ds4chat.commands import main as cli
from ds4chat.engine import llama
from ds4chat.engine.client import EngineClient
from ds4chat.engine.events import Load, Loaded, LoadFailed


def version(**variables: str) -> subprocess.CompletedProcess[str]:
    """``ds4chat --version`` in a new process, with these variables in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "ds4chat", "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=120,
    )


def test_it_names_the_backends_and_devices_that_ggml_has_here() -> None:
    done = version()
    first, second, *rest = done.stdout.splitlines()
    assert (done.returncode, done.stderr, first) == (0, "", f"ds4chat {__version__}")
    assert second == f"llama.cpp {llama.version()}"
    assert [line.split()[0] for line in rest] == [name for name, _ in llama.backends()]
    described = [name for _, devices in llama.backends() for name in devices]
    assert sorted(described) == sorted(name for _, name in llama.devices())
    assert all(any(name in line for line in rest) for name in described)


def test_llama_cpp_itself_is_named_by_version_and_commit() -> None:
    bindings = f"of llama-cpp-python {metadata.version('llama-cpp-python')}"
    assert re.fullmatch(rf"\d+\.\d+\.\d+\S* \([0-9a-f]{{7,}}\S*\) {re.escape(bindings)}", llama.version())


def test_a_line_a_backend_with_its_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build for a card that the driver does not show has the backend without a device."""
    built = [("CUDA", ("NVIDIA H200", "NVIDIA L4")), ("Vulkan", ()), ("CPU", ("Intel Xeon",))]
    monkeypatch.setattr(llama, "backends", lambda: built)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "  CUDA     NVIDIA H200, NVIDIA L4",
        "  Vulkan   no device",
        "  CPU      Intel Xeon",
    ]


@pytest.mark.parametrize("raised", ["ImportError", "OSError", "RuntimeError"])
def test_a_llama_cpp_that_does_not_load_is_said_after_the_version(tmp_path: Path, raised: str) -> None:
    """Such as one that was built for a driver that is not there."""
    (tmp_path / "llama_cpp.py").write_text(f'raise {raised}("libcuda.so.1: no such file")\n')
    done = version(PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, f"ds4chat {__version__}\n")
    assert done.stderr.startswith("ds4chat: llama.cpp cannot be loaded: libcuda.so.1: no such file. Install ")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def other_version(tmp_path: Path) -> Path:
    """A folder with the library of a llama.cpp that has no llama_version."""
    library = Path(llama.C._lib._name)
    content = library.read_bytes()
    assert content.count(b"\0llama_version\0") == 1
    for neighbour in library.parent.iterdir():
        (tmp_path / neighbour.name).symlink_to(neighbour)
    (tmp_path / library.name).unlink()
    (tmp_path / library.name).write_bytes(content.replace(b"\0llama_version\0", b"\0llama_versioM\0"))
    return tmp_path


def test_a_llama_cpp_of_another_version_is_said_after_the_version(other_version: Path) -> None:
    done = version(LLAMA_CPP_LIB_PATH=str(other_version))
    assert (done.returncode, done.stdout) == (1, f"ds4chat {__version__}\n")
    assert done.stderr == f"ds4chat: {unusable(other_version)}\n"


def test_a_chat_with_a_llama_cpp_of_another_version_says_so(
    other_version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's process goes on: the next model may be a server's."""
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(other_version))
    engine = EngineClient(tmp_path / "log")
    engine.start()
    engine.send(Load(model="any.gguf"))
    try:
        _, events = engine.wait_for(Loaded, 120)
        assert events == [LoadFailed(unusable(other_version))]
        assert engine.alive
    finally:
        engine.close()


def unusable(folder: Path) -> str:
    """What is said about the library of ``other_version``."""
    library = folder / Path(llama.C._lib._name).name
    return (
        f"llama.cpp cannot be loaded: {library}: undefined symbol: llama_version. Install llama-cpp-python "
        "again, in the version that ds4chat requires; docs/gpu.md says how."
    )
