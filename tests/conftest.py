"""Fixtures that every room of the tests may use."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from kits.command_line import RunHere, running_here
from kits.mounts import may_mount, run_in_namespace

# Time decides nothing, so that a busy machine finds no fault. The README's command looks at the same examples
# each time; .ci/run looks at more of them and at others, with --hypothesis-profile thorough.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", UNTIMED, max_examples=60, derandomize=True)
settings.register_profile("thorough", UNTIMED, max_examples=500, print_blob=True)
settings.load_profile("default")

collect_ignore = [] if os.environ.get("DS4CHAT_RPC_LIBRARY") else ["engine/test_rpc_servers.py"]
"""Real RPC servers need a backend that a plain llama-cpp-python lacks: tools/build_rpc.py builds it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--mtp-verify-depth N``: the draft depth at which tests/verify runs."""
    parser.addoption(
        "--mtp-verify-depth", type=int, default=4, metavar="N", help="draft depth of tests/verify"
    )


def pytest_configure() -> None:
    """Have signals count, also in a background job that ignores them: every process started here would
    inherit that."""
    for name, handler in (
        ("SIGINT", signal.default_int_handler),
        ("SIGQUIT", signal.SIG_DFL),
        ("SIGHUP", signal.SIG_DFL),
    ):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_finish() -> None:
    """The thousands of collected tests stay until the end: no look for garbage has to go through them. Apps
    make many objects that live long; to look among these less often saves a good part of a test's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run what mounts a file system as one who may."""
    if pyfuncitem.get_closest_marker("mounts") is None or may_mount():
        return None
    run_in_namespace(pyfuncitem)
    return True


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of this session's constructed GGUFs: ``tiny.build(kind, tiny_dir, ...)`` makes each once, for
    every process that runs tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tiny"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the folders of whoever runs it, nor their switches of ds4chat, of colours
    and of what Python warns of."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS4CHAT_HOME", str(home))
        for name in list(os.environ):
            if name.startswith(("DS4_MTP_", "NO_COLOR", "PYTHONDEVMODE", "PYTHONWARNINGS")):
                patch.delenv(name)
        yield home


@pytest.fixture
def run_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[RunHere]:
    """Runs the command line in this process: a start of one costs more than most of what is looked at."""
    with running_here(capfd, monkeypatch) as run:
        yield run
