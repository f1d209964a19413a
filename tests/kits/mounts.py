"""File systems of a test's own, for whoever runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
"""Runs a command as one who may mount, in sight of that command alone."""


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs at ``folder``, with options such as ``size=1m`` or ``ro``; for tests marked ``mounts``."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def may_mount(namespace: tuple[str, ...] = ()) -> bool:
    """Whether a file system can be mounted, in such a namespace."""
    command = [*namespace, "unshare", "--mount", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run_in_namespace(test: pytest.Function) -> None:
    """Run the test once more, in a process that may mount; its failure is that of this one."""
    if not may_mount(NAMESPACE):
        pytest.skip("neither root nor a namespace in which a user may mount")
    options = [
        "-n",
        "0",
        "-m",
        "",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={test.funcargs['tmp_path']}/in",
    ]
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-m", "pytest", *options, test.nodeid],
        cwd=test.config.rootpath,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and " skipped" not in done.stdout, done.stdout + done.stderr
