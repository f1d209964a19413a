"""What the engine says it runs on: by it cost tables and benches of different cards are told apart."""

from __future__ import annotations

import pytest

from ds4chat.engine import llama

CPU, GPU, IGPU, ACCEL = range(4)
"""ggml_backend_dev_type."""


def test_ggml_is_asked_for_its_devices_and_describes_them() -> None:
    """Every build has the CPU, and each device says what it is."""
    found = llama.devices()
    assert CPU in {kind for kind, _ in found}
    assert all(description for _, description in found)


def test_it_is_the_cpu_exactly_where_nothing_can_be_offloaded() -> None:
    offloads = any(kind in (GPU, IGPU) for kind, _ in llama.devices())
    assert (llama.device() == "CPU") is not offloads


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ([(GPU, "NVIDIA H200"), (CPU, "Intel Xeon")], "NVIDIA H200"),
        ([(GPU, "NVIDIA A"), (GPU, "NVIDIA B"), (CPU, "x")], "NVIDIA A + NVIDIA B"),
        ([(IGPU, "AMD 780M"), (GPU, "NVIDIA A"), (CPU, "x")], "NVIDIA A"),
        ([(IGPU, "AMD 780M"), (ACCEL, "BLAS"), (CPU, "x")], "AMD 780M"),
        ([(GPU, ""), (CPU, "x")], "GPU"),
        ([(CPU, "x")], "GPU"),
        ([], "GPU"),
    ],
)
def test_a_gpu_goes_by_its_description(found: list[tuple[int, str]], name: str) -> None:
    """Several are joined; an integrated one counts only where there is no other; nothing known is "GPU"."""
    assert llama.gpu_name(found) == name


def test_another_card_takes_another_cost_table() -> None:
    """The card is part of the name under which measured costs are kept."""
    from ds4chat.engine.opening import cost_file
    from ds4chat.models.demo import demo_model

    one, other = (cost_file(demo_model(), "lookup", 2, llama.gpu_name([(GPU, card)])) for card in ("A", "B"))
    assert one != other
