"""What the file names of a repository say, and how far a download is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ds4chat.models import download
from ds4chat.models.download import DownloadProgress, Meter
from ds4chat.models.repository import (
    HubError,
    HubModel,
    Reference,
    choose,
    marks,
    marks_of_keys,
    models_of,
    parse_reference,
)

FILES = {
    "Big-7B-UD-Q4_K_XL.gguf": 4,
    "Big-7B-Q8_0-00001-of-00002.gguf": 5,
    "Big-7B-Q8_0-00002-of-00002.gguf": 3,
    "sub/big-7b-iq2_xxs.gguf": 1,
    "Big-7B-MTP-Q4_K_XL.gguf": 1,
    "mmproj-Big-F16.gguf": 1,
    "Big-imatrix.gguf": 1,
    "../up.gguf": 1,
    "/etc/x.gguf": 1,
    "a\\b.gguf": 1,
    "README.md": 1,
}


def test_files_are_grouped_and_quantisations_read() -> None:
    found = {model.name: model for model in models_of("u/r", FILES)}
    assert {name: (model.quantisation, model.size, model.may_draft) for name, model in found.items()} == {
        "Big-7B-MTP-Q4_K_XL.gguf": ("Q4_K_XL", 1, True),
        "Big-7B-Q8_0-00001-of-00002.gguf": ("Q8_0", 8, False),
        "Big-7B-UD-Q4_K_XL.gguf": ("UD-Q4_K_XL", 4, False),
        "big-7b-iq2_xxs.gguf": ("IQ2_XXS", 1, False),
    }
    assert models_of("u/r", {"a-Q8_0.gguf": None})[0].size is None
    assert models_of("u/r", {"a-Q8_0-00002-of-00003.gguf": 1})[0].missing == 2


@pytest.mark.parametrize(
    ("wanted", "default", "name"),
    [
        ("q8_0", False, "Big-7B-Q8_0-00001-of-00002.gguf"),
        ("ud-q4_k_xl", False, "Big-7B-UD-Q4_K_XL.gguf"),
        ("Big-7B-MTP-Q4_K_XL.gguf", False, "Big-7B-MTP-Q4_K_XL.gguf"),
        ("", True, "Big-7B-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_a_reference_means_one_of_them(wanted: str, default: bool, name: str) -> None:
    assert choose(models_of("u/r", FILES), Reference("u/r", wanted), default=default).name == name


def test_the_whole_model_is_meant_where_a_support_file_has_the_quantisation_too() -> None:
    models = models_of("u/r", {"A-7B-Q4_K_M.gguf": 4, "A-7B-MTP-Q4_K_M.gguf": 1})
    assert choose(models, Reference("u/r", "Q4_K_M")).name == "A-7B-Q4_K_M.gguf"
    assert choose(models, Reference("u/r"), default=True).name == "A-7B-Q4_K_M.gguf"


def test_several_of_a_quantisation_are_named() -> None:
    models = models_of("u/r", {"A-Q4_0.gguf": 4, "B-Q4_0.gguf": 1})
    with pytest.raises(HubError, match=r"A-Q4_0.gguf \(4 bytes\), B-Q4_0.gguf .*Q4_0 names several of them"):
        choose(models, Reference("u/r", "Q4_0"))


def test_references() -> None:
    assert parse_reference("u/r:Q4_0") == Reference("u/r", "Q4_0")
    assert parse_reference(" https://huggingface.co/u/r/ ") == Reference("u/r")
    for bad in ("", "r", "u/r/x", "u /r", "../r:x/..", "u/r\x1b"):
        with pytest.raises(HubError):
            parse_reference(bad)


def test_marks_come_from_names_and_from_metadata() -> None:
    assert marks("u/x-MTP-GGUF", []) == ["NextN"]
    assert marks("u/r", [HubModel("u/r", ("x-eagle3-Q8_0.gguf",), 1, "Q8_0")]) == ["EAGLE-3"]
    assert marks("u/prompt", []) == []
    assert marks_of_keys({"general.architecture": "glm4moe", "glm4moe.nextn_predict_layers": 1}) == ["NextN"]
    assert marks_of_keys({"general.architecture": "glm4moe", "glm4moe.nextn_predict_layers": 0}) == []
    assert marks_of_keys({"general.architecture": "eagle3"}) == ["EAGLE-3"]


def test_speed_and_time_left_are_those_of_the_last_seconds() -> None:
    """1000 bytes of which 100 lie there: 100 in the first second, then 50 a second."""
    clock = iter([0.0, 1.0, 3.0, 5.0, 7.0])
    seen: list[DownloadProgress] = []
    meter = Meter(1000, seen.append, lambda: next(clock))
    meter.restart(100)
    for n in (100, 100, 100, 100):
        meter.add(n)
    assert seen[0] == DownloadProgress(100, 1000, 0.0, None)
    assert seen[1] == DownloadProgress(200, 1000, 100.0, 8.0)
    # At 7 s what came up to 2 s is forgotten, and 300 s at 3 s is the oldest left: 200 in 4 s.
    assert seen[4] == DownloadProgress(500, 1000, 50.0, 10.0)
    assert seen[4].words == " 50%  500 bytes of 1 kB  50 bytes/s  0:00:10 left"


def test_a_disk_without_room_is_said_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(_: Any) -> Any:
        return shutil._ntuple_diskusage(10**12, 10**12, 10**9)  # type: ignore[attr-defined]

    monkeypatch.setattr(shutil, "disk_usage", usage)
    model = HubModel("u/r", ("a-Q8_0.gguf",), 2 * 10**9, "Q8_0")
    with pytest.raises(HubError, match=r"needs 2.07 GB more, and 1 GB are free on the disk of"):
        download._check_space(tmp_path / "not/there/yet/file", 2 * 10**9, model)
    download._check_space(tmp_path / "file", 5 * 10**8, model)
    download._check_space(tmp_path / "file", 0, model)
