"""A fold that is element by element turns slices into the bits of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, aggregate
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.slices import cut, joined
from dl4jlegacy.scaleout.strategies import BUILT_IN, create_router
from tests.scaleout.test_updater_beginning import model

KERNELS, SLOTS = load("numpy"), 4


@pytest.mark.parametrize("name", BUILT_IN)
def test_slices_are_folded_to_the_bits_of_the_whole(name: str) -> None:
    """For three rounds, of which two end a phase: a slice of a model says all that the next round needs."""
    router, random = create_router(name, jobs_per_round=SLOTS), np.random.default_rng(1)
    fold, (current, new) = router.fold(KERNELS), model()
    assert fold.is_elementwise == (name not in ("gradient-sharing", "row-averaging"))  # whose updates are no vectors
    for version, ends_phase in enumerate((False, True, True) if fold.is_elementwise else ()):
        frame, updates = bytes(current.encode()), []
        for slot in range(SLOTS):
            vectors = [random.standard_normal(current.arrays[key].size).astype("f4") for key in (PARAMS, STATE)]
            arrays = dict(zip((router.update_kind, STATE), vectors, strict=True))
            update = Result({"examples": slot + 1, "score": 0.1 * slot, "version": version - slot}, arrays)
            if router.memory is not None:
                update, _ = router.memory.settle(current, None, update, KERNELS)
            updates.append(bytes(update.encode()))
        whole, score = aggregate(fold, frame, updates, version=version, ends_phase=ends_phase)
        for count in (1, 2, 3, 7, 50):
            slices = []
            for index in range(count):
                part, parts = cut(frame, index, count), [cut(update, index, count) for update in updates]
                fold.check(parts[0], part)
                slices.append(aggregate(fold, part, parts, version=version, ends_phase=ends_phase))
            assert bytes(joined([made for made, _ in slices])) == bytes(whole)
            assert {each for _, each in slices} == {score}
        current = Result.decode(bytes(whole))
        if ends_phase and router.memory is None:
            np.testing.assert_array_equal(current.arrays[STATE], new)
