"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ds4chat.durable import refuse_special, sync_folder

PRIVATE = 0o600


def write_atomically(path: Path, data: bytes | Iterable[bytes | memoryview], *, durable: bool = True) -> None:
    """Put ``data`` in the place of ``path``, on disk before it shows, readable by the owner alone.

    Large data may come in parts, which are written one after the other. Not ``durable``: nothing is waited
    for, and a power cut may leave a file with holes; for what has a checksum and can be made again.

    Raises OSError, or what making a part raises, and then leaves ``path`` as it was and nothing beside it. A
    process that is killed meanwhile leaves ``.NAME.PID.xxxxxxxx`` beside it.
    """
    descriptor, temporary = _beside(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.chmod(PRIVATE)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def try_place(path: Path) -> None:
    """Raise the OSError with which write_atomically() would refuse ``path``; leaves everything as it was."""
    descriptor, temporary = _beside(path)
    os.close(descriptor)
    temporary.unlink()


def _beside(path: Path) -> tuple[int, Path]:
    """A new file beside ``path``, to be renamed to it: its open descriptor and its path. Raises OSError."""
    refuse_special(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.{os.getpid()}.", dir=path.parent)
    return descriptor, Path(name)
