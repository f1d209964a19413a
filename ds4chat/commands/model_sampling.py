"""The settings with the sampling of the model that they name."""

from __future__ import annotations

from dataclasses import replace

from ds4chat.engine.from_settings import with_demo
from ds4chat.models.errors import ModelFileError
from ds4chat.models.gguf_file import read_header
from ds4chat.models.naming import display_name
from ds4chat.models.sampling import sampling_of
from ds4chat.settings.load import LoadedSettings
from ds4chat.settings.model_sampling import apply_model_sampling


def with_sampling_of_model(loaded: LoadedSettings) -> tuple[LoadedSettings, str]:
    """The settings in force once the model is loaded, and its name; unchanged, and "", without a model or if
    its file cannot be read, which loading it reports."""
    try:
        path = with_demo(loaded.settings).model
        if not path or loaded.settings.server:
            return loaded, ""
        header = read_header(path)
    except ModelFileError:
        return loaded, ""
    settings, _, sources = apply_model_sampling(
        loaded.settings, loaded.settings, loaded.sources, sampling_of(header)
    )
    name = display_name(path, header.text("general.name"))
    return replace(loaded, settings=settings, sources=sources), name
