"""Where ds4chat keeps its files: config, data, cache and logs.

The folders are the system's own, as platformdirs names them. DS4CHAT_HOME puts all four into one folder, for
portable use and for tests.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ds4chat.errors import UserFacingError

APP = "ds4chat"
HOME_VARIABLE = "DS4CHAT_HOME"
CONFIG_NAME = "config.toml"
OWNER_ONLY = 0o700


class FolderError(UserFacingError):
    """One of ds4chat's folders cannot be created."""


def folder(kind: str, environ: Mapping[str, str] | None = None) -> Path:
    """The folder for ``kind``: config, data (conversations), cache (what can be made again) or log. Creates
    nothing. Raises FolderError if this user has no home folder, or if DS4CHAT_HOME is not a usable path."""
    home = (os.environ if environ is None else environ).get(HOME_VARIABLE, "")
    if home:
        return _whole(home)
    import platformdirs

    try:
        return Path(getattr(platformdirs.PlatformDirs(APP, appauthor=False), f"user_{kind}_path"))
    except RuntimeError:
        raise FolderError(
            f"This user has no home folder to keep files in: set {HOME_VARIABLE} to a folder that can be "
            "written."
        ) from None


def _whole(home: str) -> Path:
    """The absolute path that DS4CHAT_HOME names. Raises FolderError."""
    try:
        return Path(home).expanduser().absolute()
    except RuntimeError:
        why = "names the home folder of a user who has none"
    except OSError:
        why = "is relative to the current folder, which is gone"
    raise FolderError(f"{HOME_VARIABLE}={home} {why}. Set it to a whole path, such as /tmp/ds4chat.")


def states_folder() -> Path:
    """Where the engine keeps the states of the last conversations. Creates nothing."""
    return folder("cache") / "states"


def state_file(conversation: int) -> Path:
    """Where the state of the conversation with this number in the store is kept. Creates nothing."""
    return states_folder() / f"{conversation}.state"


def made(path: Path) -> Path:
    """``path``, which is created, readable only by its owner, if it is missing. Raises FolderError."""
    if os.path.isdir(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=OWNER_ONLY, exist_ok=True)
        # The umask may have removed more from the mode than it should: the owner needs all of it.
        path.chmod(OWNER_ONLY)
    except OSError as error:
        there = next(p for p in (path, *path.parents) if os.path.exists(p))
        if not there.is_dir():
            raise FolderError(
                f"{there} is not a folder, and ds4chat keeps its files in {path}. Move it away, or set "
                f"{HOME_VARIABLE} to a folder that can be written."
            ) from None
        reason = error.strerror or str(error)
        raise FolderError(
            f"The folder {path} cannot be made: {reason}. Make it yourself, or set {HOME_VARIABLE} to a "
            "folder that can be written."
        ) from None
    return path


def made_folder(kind: str, environ: Mapping[str, str] | None = None) -> Path:
    """The folder for ``kind``, created if it is missing. Raises FolderError."""
    return made(folder(kind, environ))


def config_file(environ: Mapping[str, str] | None = None) -> Path:
    """Path of the user's settings file, which need not exist. Creates nothing."""
    return folder("config", environ) / CONFIG_NAME
