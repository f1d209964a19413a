"""A stand-in for the Hugging Face hub on loopback, as far as huggingface_hub asks: lists and files."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "5e1ec7ed" * 5


class Hub(ThreadingHTTPServer):
    """Serves ``files``: repository -> path -> contents."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.token = ""
        """The one token that is good; "" asks for none."""
        self.cut_after: int | None = None
        """Bytes of a file after which each connection is cut."""
        self.declared: dict[str, int] = {}
        """Path -> a size that is told instead of the file's own."""
        self.tags: dict[str, str] = {}
        """Path -> a tag that is told instead of the file's own."""
        self.hold = threading.Event()
        """While ``holds`` is set, a file's second half waits for this."""
        self.holds = False
        self.asked: list[tuple[str, str, str | None]] = []
        """Method, path and range of each request."""

    def sent(self, path: str) -> list[str | None]:
        """The ranges in which a file was asked for, None for all of it."""
        return [span for method, asked, span in self.asked if method == "GET" and asked.endswith(path)]


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        at = urlsplit(self.path)
        path = unquote(at.path)
        self.server.asked.append((self.command, path, self.headers["Range"]))
        if self.server.token and self.headers["Authorization"] not in (None, f"Bearer {self.server.token}"):
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif path == "/api/models":
            words = parse_qs(at.query).get("search", [""])[0].lower()
            self._json([self._info(repo, sizes=False) for repo in self.server.files if words in repo.lower()])
        elif path.startswith("/api/models/"):
            repo = path.removeprefix("/api/models/")
            if self._may_read(repo):
                self._json(self._info(repo, sizes=True))
        else:
            repo, _, rest = path.removeprefix("/").partition("/resolve/")
            if self._may_read(repo):
                self._file(repo, rest.split("/", 1)[1])

    def _may_read(self, repo: str) -> bool:
        if repo not in self.server.files:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif repo in self.server.gated and not self.headers["Authorization"]:
            self._refuse(401, "GatedRepo", "Access to this model is restricted")
        else:
            return True
        return False

    def _info(self, repo: str, *, sizes: bool) -> dict[str, Any]:
        siblings = [
            {"rfilename": name, **({"size": len(data)} if sizes else {})}
            for name, data in self.server.files[repo].items()
        ]
        gated = "manual" if repo in self.server.gated else False
        return {"id": repo, "sha": COMMIT, "downloads": 1234, "gated": gated, "siblings": siblings}

    def _file(self, repo: str, name: str) -> None:
        data = self.server.files[repo].get(name)
        if data is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        first, last = 0, len(data) - 1
        if span := self.headers["Range"]:
            begin, _, end = span.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end) if end else last, last)
            if first > last:
                self._refuse(416, "", "No such range")
                return
        part = data[first : last + 1]
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("X-Repo-Commit", COMMIT)
        tag = self.server.tags.get(name, hashlib.sha256(data).hexdigest())
        self.send_header("X-Linked-Etag", f'"{tag}"')
        self.send_header("X-Linked-Size", str(self.server.declared.get(name, len(data))))
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(OSError):  # who asked has gone
            self._send(part)

    def _send(self, part: bytes) -> None:
        if self.server.holds:
            self.wfile.write(part[: len(part) // 2])
            self.wfile.flush()
            self.server.hold.wait(60)
            part = part[len(part) // 2 :]
        if self.server.cut_after is not None and len(part) > self.server.cut_after:
            self.wfile.write(part[: self.server.cut_after])
            self.close_connection = True
        else:
            self.wfile.write(part)

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers while this lasts."""
    hub = Hub()
    threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.hold.set()
        hub.shutdown()
        hub.server_close()


def environment(hub: Hub, home: Path, **more: str) -> dict[str, str]:
    """The environment of a ds4chat that knows this hub alone, with a cache of its own under ``home``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    return {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "no_proxy": "127.0.0.1", **more}
