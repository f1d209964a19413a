"""The settings file of the running chat, and where the values in force come from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ds4chat.settings.load import SettingSource
from ds4chat.settings.model_sampling import apply_model_sampling, for_file
from ds4chat.settings.schema import BY_KEY, OPTIONS, Option, Settings

LAST_WAIT = 2.0
"""Seconds that what is still being written has when the chat is left."""


class SettingsFile:
    """Writes the settings in a thread, because a disk may be slow, and knows the source of each value."""

    def __init__(self, path: Path, given: Settings, sources: Mapping[str, SettingSource]) -> None:
        """``given`` are the settings as the sources gave them; ``sources`` names the source of each option
        key's value, and what it lacks has its default."""
        self.path = path
        self.given = given
        """As the sources gave them, or as they were last saved: a value that differs was set in the chat."""
        self.sources = dict(sources)
        self._writing = asyncio.Lock()
        self._saves: set[asyncio.Task[None]] = set()
        """Those that write or wait; they go on if nobody waits for them any more."""

    def source(self, option: Option, value: Any) -> str:
        """Where a value in force comes from, in a word or two."""
        given = getattr(self.given, option.attribute)
        if value != given:
            return "set in chat"
        source = self.sources.get(option.key, "default")
        # The demo has values of its own for what no source sets.
        return "demo" if source == "default" and given != option.default and self.given.demo else source

    def use_model_sampling(self, settings: Settings, sampling: Mapping[str, float]) -> Settings:
        """The settings with the sampling that a model's file asks for, where no source sets another."""
        settings, self.given, self.sources = apply_model_sampling(
            settings, self.given, self.sources, sampling
        )
        return settings

    def save(self, settings: Settings, *, force: bool = False) -> Awaitable[None]:
        """Write all settings, with ``force`` even over a file with problems. Awaiting it raises SaveError."""
        return self._begin(self._save(settings, force))

    def save_preset(self, name: str, values: Mapping[str, Any]) -> Awaitable[None]:
        """Write a named preset, and no other setting. Awaiting it raises SaveError."""
        return self._begin(self._save_preset(name, values))

    async def finish(self) -> str:
        """Wait, up to LAST_WAIT, for what is still being written; a sentence about what was not, or empty."""
        if not self._saves:
            return ""
        done, late = await asyncio.wait(self._saves, timeout=LAST_WAIT)
        if late:
            return (
                f"The settings may not have been saved: {self.path} could not be written within "
                f"{LAST_WAIT:g} seconds. Check its disk."
            )
        return "\n".join({str(error) for task in done if (error := task.exception())})

    def _begin(self, saving: Coroutine[Any, Any, None]) -> Awaitable[None]:
        task = asyncio.create_task(saving)
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)
        return asyncio.shield(task)

    async def _save(self, settings: Settings, force: bool) -> None:
        from ds4chat.settings.save import save

        async with self._writing:
            written = for_file(settings, self.given, self.sources)
            changed = [
                o
                for o in OPTIONS
                if getattr(settings, o.attribute) != getattr(self.given, o.attribute)
                and getattr(settings, o.attribute) == getattr(written, o.attribute)
            ]
            await asyncio.to_thread(save, written, self.path, force=force)
            for option in changed:
                # A source that wins over the file sets its value again at the next start.
                if self.sources.get(option.key, "default") in ("default", "model", "file"):
                    self._set_by_file(option, getattr(settings, option.attribute))

    def _set_by_file(self, option: Option, value: Any) -> None:
        self.sources[option.key] = "file" if value != option.default else "default"
        changed: dict[str, Any] = {option.attribute: value}
        self.given = replace(self.given, **changed)

    async def _save_preset(self, name: str, values: Mapping[str, Any]) -> None:
        from ds4chat.settings.save import save_preset

        async with self._writing:
            await asyncio.to_thread(save_preset, name, values, self.path)
            self._set_by_file(BY_KEY["presets"], {**self.given.presets, name: dict(values)})
