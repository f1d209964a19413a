"""A model's chat template, rendered in a process of its own; template_child.py says what holds it there."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ds4chat.engine.template_child import read, write

TEMPLATE_SECONDS = 5.0
"""Longest time that rendering a conversation may take."""
START_SECONDS = 60.0
"""Longest time for the process to come up, on a machine that does much else."""


class TemplateError(Exception):
    """A template failed; the text is why. ``retry``: another form of the conversation may still do."""

    def __init__(self, why: str, *, retry: bool = False) -> None:
        super().__init__(why)
        self.retry = retry


class RendererError(TemplateError):
    """The process that renders did not come up, whatever the template is; the text is why."""


class TemplateProcess:
    """Renders one chat template. It starts at once and does not wait: what comes of it is asked later."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._template: dict[str, Any] = {}
        self._end: Callable[[], object] = lambda: None
        with suppress(OSError):  # tried again, and then said, when there is something to render
            self._start()

    def open(self, template: str, bos: str, eos: str) -> None:
        """Compile the template. Raises TemplateError, of it RendererError."""
        self._template = {"template": template, "bos": bos, "eos": eos}
        if self._process is not None and self._ready:
            self.close()
        self._up()

    def render(self, messages: Sequence[dict[str, str]], switches: dict[str, Any]) -> str:
        """The prompt's text. Raises TemplateError, of it RendererError; the next call is then answered all
        the same."""
        self._up()
        text: str = self._ask({"messages": list(messages), "switches": switches}, TEMPLATE_SECONDS)
        return text

    def close(self) -> None:
        """End the process; a later call starts another."""
        self._end()
        self._process = None
        self._ready = False

    def _start(self) -> None:
        self._process = subprocess.Popen(
            # -P: a module of the same name in the working directory must not be run instead.
            [sys.executable, "-P", "-m", "ds4chat.engine.template_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in a terminal stops the reply, not what the next one needs.
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _kill, self._process)

    def _up(self) -> None:
        """Have the process run, with the template compiled."""
        if self._ready:
            return
        if self._process is None:
            try:
                self._start()
            except OSError as error:
                raise RendererError(f"{sys.executable}: {error.strerror or error}") from None
        try:
            self._ask(None, START_SECONDS)
        except TemplateError as error:
            raise RendererError(str(error)) from None
        self._ask(self._template, TEMPLATE_SECONDS)
        self._ready = True

    def _ask(self, request: dict[str, Any] | None, seconds: float) -> Any:
        """The text that answers a request, or None's: the word that the process is there."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            if request is not None:
                write(process.stdin, request)  # type: ignore[arg-type]
            answer = read(process.stdout)  # type: ignore[arg-type]
        except (OSError, ValueError):
            answer = None
        finally:
            timer.cancel()
        if answer is None:
            code = process.wait()
            self.close()
            raise TemplateError(
                f"it did not end within {seconds:g} seconds" if late.is_set() else _death(code)
            )
        if "error" in answer:
            if request is self._template:
                self.close()
            raise TemplateError(str(answer["error"]), retry=bool(answer.get("retry")))
        return answer.get("text")


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):  # what was still to be written has no reader
                stream.close()


def _death(code: int) -> str:
    if code >= 0:
        return f"its process left with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was ended by {name}"
