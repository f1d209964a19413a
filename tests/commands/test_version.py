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


def version(*, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``ds4chat --version`` in a new process, with modules of ``path`` before the installed ones."""
    environ = dict(os.environ, **({"PYTHONPATH": str(path)} if path else {}))
    return subprocess.run(
        [sys.executable, "-m", "ds4chat", "--version"],
        capture_output=True,
        text=True,
        env=environ,
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
    done = version(path=tmp_path)
    assert (done.returncode, done.stdout) == (1, f"ds4chat {__version__}\n")
    assert done.stderr.startswith("ds4chat: llama.cpp cannot be loaded: libcuda.so.1: no such file. Install ")
    assert len(done.stderr.splitlines()) == 1
