"""What is said when a GPU's memory is full."""

from __future__ import annotations

import pytest

from dl4jlegacy.errors import DeviceMemoryError, TrainingError
from dl4jlegacy.nn.memory import Allocation, largest_batch, out_of_memory

MIB = 1 << 20
HELD = (
    Allocation("parameters", 100 * MIB),
    Allocation("updater state", 200 * MIB),
    Allocation("layer 0 (convolution)", 300 * MIB, per_example=True),
    Allocation("layer 1 (subsampling)", 10 * MIB, per_example=True),
)


def full(**changes: object) -> DeviceMemoryError:
    fields = {
        "device": "gpu:0 NVIDIA H100",
        "layer": "layer 2 (dense)",
        "buffer": "z",
        "shape": (512, 4096),
        "asked": 90 * MIB,
        "held": HELD,
        "batch": 512,
        "available": 640 * MIB,
    }
    return out_of_memory(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_message_names_device_layer_buffer_and_who_has_the_memory() -> None:
    message = str(full())
    for word in ("gpu:0 NVIDIA H100", "layer 2 (dense)", "'z'", "(512, 4096)", "90.0 MiB", "610.0 MiB of 640.0 MiB"):
        assert word in message
    assert "layer 0 (convolution) 300.0 MiB, updater state 200.0 MiB, parameters 100.0 MiB;" in message
    assert "subsampling" not in message, "the three largest are enough"


def test_the_batch_that_fits_leaves_room_for_what_does_not_grow_with_it() -> None:
    assert largest_batch(90 * MIB, HELD, 512, 640 * MIB) == 340 * 512 // 400 == 435
    assert "--batch-size 435 or less" in str(full())


@pytest.mark.parametrize(("available", "fits"), [(301 * MIB, 1), (300 * MIB, 0), (1, 0), (10_000 * MIB, 511)])
def test_the_batch_that_fits_is_none_at_all_or_less_than_the_one_that_did_not(available: int, fits: int) -> None:
    assert largest_batch(90 * MIB, HELD, 512, available) == fits


def test_where_not_one_example_fits_the_message_says_so() -> None:
    assert "not even 1 example fits" in str(full(available=300 * MIB))


@pytest.mark.parametrize("unknown", [{"batch": 0}, {"available": 0}])
def test_what_is_not_known_is_not_computed(unknown: dict[str, int]) -> None:
    message = str(full(**unknown))
    assert "take a smaller --batch-size" in message and "or less" not in message


def test_a_network_that_has_nothing_yet_is_told_as_such() -> None:
    assert "nothing of this network is in use of 640.0 MiB yet" in str(full(held=()))


def test_it_is_training_that_failed() -> None:
    assert isinstance(full(), TrainingError) and (full().code, full().exit_status) == ("DL4J-MEMORY", 1)
