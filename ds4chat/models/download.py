"""Models from the Hugging Face hub: lists of repositories, headers of their files, and downloads to the
cache.

Files go to the hub's own cache, which other programs share, and whose variables apply: HF_HOME, HF_HUB_CACHE,
HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE. An interrupted download resumes where it stopped. Nothing here is
called unless the user asked for it.

huggingface_hub takes a while to import, so it is imported where it is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, cast

from ds4chat.models.errors import ModelFileError, shown_size
from ds4chat.models.gguf_file import parse_header, read_header, read_leading_keys
from ds4chat.models.kinds import kind_of
from ds4chat.models.pairing import check_pair, check_target
from ds4chat.models.repository import HubError, HubModel, Reference, choose, marks, marks_of_keys, models_of
from ds4chat.text import one_line, shortened

MOST_FOUND = 20
"""Most repositories that a search lists."""
_HEAD = 1 << 17
"""Bytes at the beginning of a file that contain the metadata about its architecture."""
_BLOCK = 1 << 20
_MOST_HEADER = 256 << 20
"""Most bytes of a header; the largest vocabularies take a tenth of that."""
_SPARE = 64 << 20
"""Bytes that a download leaves free on the disk."""
_SPEED_SECONDS = 5.0
_MOST_FAMILIES = 6
"""Models of a repository whose headers are read to see whether they draft for another."""
_CHUNK = 1 << 18
"""Bytes that huggingface_hub reads before it reports progress; its default of 10 MiB takes minutes on a slow
connection."""


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is. ``speed``: bytes per second over the last seconds, 0 until known; ``left``:
    seconds to go, None until known."""

    done: int
    total: int
    speed: float
    left: float | None

    @property
    def words(self) -> str:
        """As a line of text: "45%  1.2 GB of 2.7 GB  35 MB/s  0:00:42 left"."""
        share = self.done / self.total if self.total else 1.0
        words = [f"{share:4.0%}", f"{shown_size(self.done)} of {shown_size(self.total)}"]
        if self.speed:
            words.append(f"{shown_size(round(self.speed))}/s")
        if self.left is not None:
            words.append(f"{timedelta(seconds=round(self.left))} left")
        return "  ".join(words)


Report = Callable[[DownloadProgress], None]


@dataclass(frozen=True, slots=True)
class FoundRepository:
    """A repository that a search found. ``marks``: kinds of drafters in it, "NextN" or "EAGLE-3"."""

    repo: str
    downloads: int
    gated: bool
    quantisations: tuple[str, ...]
    marks: tuple[str, ...]


class Meter:
    """Counts bytes, and reports speed and time left."""

    def __init__(self, total: int, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._report = report
        self._clock = clock
        self._done = 0
        self._seen: deque[tuple[float, int]] = deque()

    def restart(self, done: int) -> None:
        """``done`` bytes are there from an earlier download."""
        self._done = done
        self._seen.clear()
        self.add(0)

    def add(self, n: int) -> None:
        """``n`` bytes arrived; negative if the download starts over."""
        self._done += n
        now = self._clock()
        self._seen.append((now, self._done))
        while now - self._seen[0][0] > _SPEED_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        began, before = self._seen[0]
        speed = max(0.0, (self._done - before) / (now - began)) if now > began else 0.0
        left = (self._total - self._done) / speed if speed > 0 else None
        self._report(DownloadProgress(self._done, self._total, speed, left))


# ------------------------------------------------------------------------------------ lists


def repository(repo: str) -> list[HubModel]:
    """The models of a repository with their sizes. Raises HubError."""
    with _sentences(repo) as hub:
        info = hub.HfApi().model_info(repo, files_metadata=True, timeout=hub.constants.HF_HUB_ETAG_TIMEOUT)
    return models_of(repo, {file.rfilename: file.size for file in info.siblings or ()})


def search(words: str) -> list[FoundRepository]:
    """Repositories with GGUF files whose name has the words, the most downloaded first. Raises HubError.

    Drafters in them are recognised by the file names; if these say nothing, by the first bytes of a file.
    """
    with _sentences(words) as hub:
        expand = ["downloads", "gated", "siblings"]
        infos = list(
            hub.HfApi().list_models(
                search=words, filter="gguf", sort="downloads", limit=MOST_FOUND, expand=expand
            )
        )
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_found, infos))


def _found(info: Any) -> FoundRepository:
    models = models_of(info.id, {file.rfilename: None for file in info.siblings or ()})
    known = marks(info.id, models)
    if models and not known:
        try:
            keys = read_leading_keys(_read_range(info.id, models[0].names[0], 0, _HEAD))
            known = marks_of_keys(keys)
        except ModelFileError:
            known = []  # gated, or not a GGUF after all: listing the repository says which
    quantisations = dict.fromkeys(model.quantisation for model in models if model.quantisation)
    return FoundRepository(info.id, info.downloads or 0, bool(info.gated), tuple(quantisations), tuple(known))


def resolve(reference: Reference) -> HubModel | Path:
    """What ``-hf`` means: a file in the cache, without a request, else a model of the repository. Raises
    HubError."""
    cached = _cached(reference.repo)
    if reference.wanted:
        with suppress(HubError):  # the cache does not have it: the hub may
            return cached[choose(cached, reference)]
    try:
        model = choose(repository(reference.repo), reference, default=True)
    except HubError:
        if not cached:
            raise
        return cached[choose(cached, reference, default=True)]
    return next((path for held, path in cached.items() if held.names == model.names), model)


def _cached(repo: str) -> dict[HubModel, Path]:
    """The models of a repository that are complete in the hub's cache, as of its last listing, with the path
    of their first file."""
    with _sentences(repo) as hub:
        storage = _storage(hub, repo)
    try:
        commit = (storage / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return {}
    folder = storage / "snapshots" / commit
    files = {
        str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }
    return {model: folder / model.names[0] for model in models_of(repo, files) if not model.missing}


# ------------------------------------------------------------------------------------ headers


@contextmanager
def headers_of(model: HubModel) -> Iterator[Path]:
    """A file with only the model's header, to be inspected before the model is downloaded.

    It has the model's name and size and takes a few megabytes: the tensors' bytes are holes, which read as
    zeros. All parts of a split model are in one folder. Raises HubError and ModelFileError.
    """
    with tempfile.TemporaryDirectory(prefix="ds4chat-") as folder:
        for name in model.names:
            path = Path(folder) / name.rsplit("/", 1)[-1]
            size = _remote(model.repo, name).size
            try:
                with path.open("w+b") as file:
                    prefix = _Prefix(model.repo, name, file)
                    parse_header(cast(BinaryIO, prefix), size, path)
                    file.truncate(size)
            except OSError as error:
                raise HubError(
                    f"The header of {one_line(model.name)} cannot be stored in {one_line(folder)}: "
                    f"{error.strerror}. Make room there, or set TMPDIR to a folder elsewhere."
                ) from None
        yield Path(folder) / model.name


class _Prefix:
    """The beginning of a remote file, downloaded into a local one as far as it is read."""

    def __init__(self, repo: str, name: str, file: BinaryIO) -> None:
        self._repo, self._name, self._file = repo, name, file
        self._have = 0

    def seek(self, offset: int) -> int:
        """Go to ``offset``."""
        return self._file.seek(offset)

    def read(self, n: int) -> bytes:
        """The next ``n`` bytes, downloaded if necessary."""
        at = self._file.tell()
        while self._have < at + n:
            if self._have > _MOST_HEADER:
                raise HubError(f"The header of {one_line(self._name)} is larger than that of any model.")
            block = _read_range(self._repo, self._name, self._have, max(_BLOCK, at + n - self._have))
            if not block:
                break
            self._file.seek(self._have)
            self._have += self._file.write(block)
        self._file.seek(at)
        return self._file.read(n)


def support_in(target: Path, chosen: HubModel, models: list[HubModel]) -> list[tuple[HubModel, str]]:
    """Other models of the repository that draft for a local target, with the kind of drafter, found by their
    headers. Raises ModelFileError if the target itself cannot be used."""
    header = check_target(target)
    families: dict[str, list[HubModel]] = {}
    for model in models:
        if model.size is not None and model.size < header.file_size and not model.missing:
            families.setdefault(model.family, []).append(model)
    families.pop(chosen.family, None)
    found = []
    # Names that suggest drafting come first, because only a few headers are read.
    ordered = sorted(families.values(), key=lambda family: not family[0].may_draft)
    for family in ordered[:_MOST_FAMILIES]:
        model = next((m for m in family if m.quantisation in ("Q8_0", chosen.quantisation)), family[0])
        try:
            with headers_of(model) as path:
                support = read_header(path)
                if kind_of(support).whole and support.file_size * 2 > header.file_size:
                    continue  # a whole model drafts only if it is much smaller
                pair = check_pair(header, path)
        except ModelFileError:
            continue
        if not pair.off_reason:
            found.append((model, pair.kind))
    return found


def _read_range(repo: str, name: str, start: int, n: int) -> bytes:
    """``n`` bytes of a remote file from ``start`` on, fewer at its end. Raises HubError."""
    with _sentences(repo) as hub:
        headers = {**hub.utils.build_hf_headers(), "Range": f"bytes={start}-{start + n - 1}"}
        url = hub.hf_hub_url(repo, name)
        timeout = hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
        with hub.utils.http_stream_backoff(
            "GET", url, headers=headers, timeout=timeout, max_retries=2
        ) as response:
            if response.status_code == 416:
                return b""
            hub.utils.hf_raise_for_status(response)
            if response.status_code != 206 and start:
                raise HubError("The hub does not serve parts of files, so a header cannot be read there.")
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) >= n:
                    break  # a server without support for ranges sends the whole file
            return bytes(data[:n])


# ------------------------------------------------------------------------------------ files


@dataclass(frozen=True, slots=True)
class _Remote:
    """A file of the hub. ``path``: its place in the cache, None if it is not there; ``blob``: where the cache
    keeps its contents, under a tag that identifies them."""

    repo: str
    name: str
    size: int
    path: Path | None
    blob: Path

    @property
    def partial(self) -> Path:
        return self.blob.with_name(f"{self.blob.name}.incomplete")

    @property
    def have(self) -> int:
        """Bytes that are on this disk already."""
        if self.path or self.blob.exists():
            return self.size
        try:
            have = self.partial.stat().st_size
        except OSError:
            return 0
        return have if have <= self.size else 0


def fetch(model: HubModel, report: Report = lambda _: None) -> Path:
    """Download the model into the hub's cache if it is not there; the path of its first file.

    A part left by an interrupted call or process is resumed. Raises HubError.
    """
    remotes = [_remote(model.repo, name) for name in model.names]
    total = sum(remote.size for remote in remotes)
    _check_space(remotes[0].blob, total - sum(remote.have for remote in remotes), model)
    meter = Meter(total, report)
    done, paths = 0, []
    for remote in remotes:
        meter.restart(done + remote.have)
        paths.append(remote.path or _fetch_file(remote, meter))
        done += remote.size
        meter.restart(done)
    return paths[0]


def _remote(repo: str, name: str) -> _Remote:
    with _sentences(repo) as hub:
        metadata = hub.get_hf_file_metadata(hub.hf_hub_url(repo, name))
        storage = _storage(hub, repo)
        if metadata.size is None or metadata.commit_hash is None or not metadata.etag:
            raise HubError(
                f"The hub at {hub.constants.ENDPOINT} does not say what {one_line(name)} is: it gave "
                "no size, commit or tag. Check HF_ENDPOINT, and any proxy in between."
            )
        if not re.fullmatch(r"[\w-]{1,128}", metadata.etag, re.ASCII):
            raise HubError(
                f"The hub gave {shortened(metadata.etag)} as the tag of a file. Check HF_ENDPOINT."
            )
        cached = hub.try_to_load_from_cache(repo, name, revision=metadata.commit_hash)
    path = Path(cached) if isinstance(cached, str) else None
    return _Remote(repo, name, metadata.size, path, storage / "blobs" / metadata.etag)


def _storage(hub: Any, repo: str) -> Path:
    """The cache's folder for a repository."""
    return Path(
        hub.constants.HF_HUB_CACHE, hub.file_download.repo_folder_name(repo_id=repo, repo_type="model")
    )


def _check_space(path: Path, missing: int, model: HubModel) -> None:
    """Raises HubError if the disk of ``path`` has no room for what is missing."""
    there = next(folder for folder in path.parents if folder.exists())
    free = shutil.disk_usage(there).free
    if missing and free < missing + _SPARE:
        raise HubError(
            f"{one_line(model.name)} needs {shown_size(missing + _SPARE)} more, and {shown_size(free)} are "
            f"free on the disk of {one_line(there)}. Make room, or set HF_HUB_CACHE to a folder elsewhere."
        )


def _fetch_file(remote: _Remote, meter: Meter) -> Path:
    """Download one file into the cache; its path there. Raises HubError."""
    with _sentences(remote.repo, resumes=True) as hub:
        if remote.size > hub.constants.MAX_HTTP_DOWNLOAD_SIZE:
            # The hub serves files of this size only through Xet, which cannot resume.
            return Path(hub.hf_hub_download(remote.repo, remote.name, tqdm_class=_bar(meter)))
        if not remote.blob.exists():
            remote.blob.parent.mkdir(parents=True, exist_ok=True)
            with _locked(remote.partial) as file:
                _load_rest(hub, remote, file, meter)
                os.replace(remote.partial, remote.blob)
        # The contents are there under their tag: this only adds their name.
        return Path(hub.hf_hub_download(remote.repo, remote.name))


def _load_rest(hub: Any, remote: _Remote, file: BinaryIO, meter: Meter) -> None:
    have = file.seek(0, os.SEEK_END)
    if have > remote.size:
        have = file.seek(0)
        file.truncate()
    hub.constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
    # http_get resumes a lost connection a few times.
    hub.file_download.http_get(
        hub.hf_hub_url(remote.repo, remote.name),
        file,
        resume_size=have,
        headers=hub.utils.build_hf_headers(),
        expected_size=remote.size,
        tqdm_class=_bar(meter),
    )
    file.flush()
    if re.fullmatch(r"[0-9a-f]{64}", remote.blob.name):
        file.seek(0)
        if hashlib.file_digest(cast(Any, file), "sha256").hexdigest() != remote.blob.name:
            remote.partial.unlink()
            raise HubError(
                f"{one_line(remote.name)} arrived damaged: its checksum is not the hub's. It was "
                "deleted; run the command again."
            )
    os.fsync(file.fileno())


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Lock the file at ``path`` for this process. Raises HubError if another one writes it."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HubError("Another ds4chat is loading this file. Wait for it, or stop it.") from None
        except OSError:
            pass  # a file system without locks
        yield file


def _bar(meter: Meter) -> type[Any]:
    """A progress bar for huggingface_hub that draws nothing and counts into the meter."""

    class Bar:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def update(self, n: int = 1) -> None:
            """``n`` bytes came."""
            meter.add(n)

        def ignore(self, *_: object, **__: object) -> None:
            """Nothing is drawn, and compressed bytes count when they are decompressed."""

        close = set_postfix_str = set_transfer_postfix_str = update_transfer = ignore

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Bar


# ------------------------------------------------------------------------------------ errors


@contextmanager
def _sentences(subject: str, *, resumes: bool = False) -> Iterator[Any]:
    """The module huggingface_hub; what it raises becomes a HubError about ``subject``. ``resumes``: a part of
    a file may be here, where the next call begins."""
    # Without this, every request reports which programs are installed on this machine.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub.constants
    import huggingface_hub.errors
    import huggingface_hub.file_download
    import huggingface_hub.utils

    hub: Any = huggingface_hub
    errors: Any = huggingface_hub.errors
    hub.utils.logging.set_verbosity_error()
    host, subject = hub.constants.ENDPOINT, one_line(subject)
    kept = "; the part downloaded so far is kept." if resumes else "."
    try:
        yield hub
    except errors.OfflineModeIsEnabled:
        raise HubError(
            "HF_HUB_OFFLINE is set, so the hub is not asked. Unset it to download models."
        ) from None
    except errors.GatedRepoError:
        raise HubError(
            f"{subject} is gated: accept its terms at {host}/{subject}, and set HF_TOKEN to a token of that "
            "account."
        ) from None
    except errors.RepositoryNotFoundError:
        raise HubError(
            f"The hub has no repository {subject}, or it is private. Check the name, or set HF_TOKEN to a "
            "token that may read it."
        ) from None
    except errors.HFValidationError:
        raise HubError(f"{subject} is not a repository of the hub. Give USER/REPO.") from None
    except errors.RemoteEntryNotFoundError:
        raise HubError(f"{subject} does not have that file. List it: ds4chat get {subject}") from None
    except errors.HfHubHTTPError as error:
        raise HubError(_answered(error.response.status_code, subject, host)) from None
    except (errors.LocalEntryNotFoundError, errors.HTTPError) as error:
        raise HubError(
            f"The hub at {host} cannot be reached ({type(error).__name__}). Check the connection, a proxy "
            f"and HF_ENDPOINT, and run it again{kept}"
        ) from None
    except OSError as error:
        if "Consistency check failed" not in str(error):
            place = f" {one_line(error.filename)}" if error.filename else ""
            raise HubError(
                f"{subject} cannot be stored{place}: {one_line(error.strerror or error)}. Change that, or "
                f"set HF_HUB_CACHE to another folder{kept}"
            ) from None
        raise HubError(
            f"The hub announced one size for a file of {subject} and sent another. Run it again."
        ) from None


def _answered(status: int, subject: str, host: str) -> str:
    if status == 401:
        return "The hub rejects the token. Set HF_TOKEN to a valid one, or unset it."
    if status == 403:
        return f"The hub does not let this token read {subject}. Give it that right, or use another one."
    if status == 429:
        return "The hub limits the rate of requests. Wait a few minutes, or set HF_TOKEN."
    return f"The hub at {host} answered {status} for {subject}. Try again later."
