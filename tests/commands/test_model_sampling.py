"""The sampling that a file asks for, on the command line."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import tiny

from ds4chat.commands.main import main
from ds4chat.models.gguf_file import read_header
from ds4chat.models.sampling import sampling_of


@pytest.fixture
def model(tiny_dir: Path, tmp_path: Path) -> Path:
    """A model whose file asks for sampling, and holds a wrong type and a wild number, too."""
    source = gguf.GGUFReader(tiny.build("llama", tiny_dir))
    path = tmp_path / "Some-Model-7B-Q4_0.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for field in source.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    writer.add_float32("general.sampling.temp", 0.6)
    writer.add_int32("general.sampling.top_k", 20)
    writer.add_string("general.sampling.top_p", "0.8")
    writer.add_float32("general.sampling.penalty_repeat", 99.0)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


def test_the_file_says_numbers(model: Path) -> None:
    assert sampling_of(read_header(model)) == {"temp": 0.6, "top-k": 20, "repeat-penalty": 99.0}


def test_config_show_names_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "-m", str(model), "--top-k", "5"]) == 0
    lines = {line.split(" ")[0]: line.split("# ")[-1] for line in capsys.readouterr().out.splitlines()}
    assert lines["temp"] == "model, Some Model 7B"
    assert lines["top-k"] == "command line"
    assert lines["repeat-penalty"] == lines["top-p"] == "default"


def test_a_one_shot_samples_as_the_model_asks(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["-m", str(model), "-p", "a", "-n", "2", "-c", "64", "-t", "1", "--json", "-s", "1"]
    assert main(common) == 0
    assert '"temp": 0.6' in capsys.readouterr().out
    assert main([*common, "--temp", "0"]) == 0
    assert '"temp": 0.0' in capsys.readouterr().out
