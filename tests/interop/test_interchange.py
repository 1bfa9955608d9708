"""Model files of the real Deeplearning4j, both ways: it runs here, in a Java of its own, over every layer and function.

``python -m tests.interop.page`` writes the table of docs/dl4j-compatibility.md from the same run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.normalizers import (
    ImagePreProcessingScaler,
    Normalizer,
    NormalizerMinMaxScaler,
    NormalizerStandardize,
)
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_normalizer, write_model
from tests.interop import matrix, ours, page, theirs
from tests.interop.real_dl4j import VERSIONS, RealDl4j, Refused, running

pytestmark = [pytest.mark.long, pytest.mark.interop]
RANDOM = 20
"""Random networks of Deeplearning4j's, of each version."""


@pytest.mark.parametrize("version", VERSIONS)
def test_files_go_both_ways_and_none_answers_otherwise_in_silence(version: str, tmp_path: Path) -> None:
    with running(version, tmp_path) as real:
        found = {
            "theirs": list(matrix.from_theirs(real, matrix.their_cases(version), tmp_path)),
            "ours": list(matrix.from_ours(real, matrix.our_cases(), tmp_path)),
            "random": list(matrix.from_theirs(real, matrix.random_cases(version, RANDOM), tmp_path, drawn=True)),
        }
        check_normalizers(real, tmp_path)
    every = [result for results in found.values() for result in results]
    assert not [result for result in every if result.is_wrong]
    assert not [result for result in found["ours"] if result.found.startswith("Deeplearning4j refuses")]
    same = {way: sum(result.found == matrix.SAME for result in results) for way, results in found.items()}
    assert same["ours"] >= 150 and same["theirs"] >= 150 and same["random"] >= RANDOM // 2, same
    assert page.disagreement(version, found["ours"], found["theirs"]) == ""


def check_normalizers(real: RealDl4j, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, labels = rng.uniform(0, 255, size=(6, 4)).astype("f4"), np.eye(3, dtype="f4")[np.arange(6) % 3]
    arrays, data = {"x": [x], "l": [labels]}, DataSet(x, labels)
    dense = theirs.layer("DenseLayer", nIn=4, nOut=5)
    network = theirs.stack(dense, theirs.layer("OutputLayer", "MCXENT", nIn=5, nOut=3, activation="SOFTMAX"))
    mine, _ = next(iter(ours.everything())).trained()
    kinds: list[tuple[theirs.Node, Normalizer]] = [
        (theirs.new("NormalizerStandardize"), NormalizerStandardize()),
        (theirs.new("NormalizerMinMaxScaler", -1.0, 2.0), NormalizerMinMaxScaler(-1.0, 2.0)),
        (theirs.new("ImagePreProcessingScaler", 0.0, 1.0), ImagePreProcessingScaler(0.0, 1.0)),
    ]
    there, here = tmp_path / "there.zip", tmp_path / "here.zip"
    for described, normalizer in kinds:
        if real.version == "0.9.1" and isinstance(normalizer, ImagePreProcessingScaler):
            with pytest.raises(Refused, match="No serializer strategy"):
                real.build(network, arrays, save=there, normalizer=described)
            with pytest.raises(ModelError, match="cannot read an ImagePreProcessingScaler"):
                write_model(mine, here, normalizer=normalizer.fit(data), dl4j_version="0.9.1")
            continue
        real.build(network, arrays, save=there, normalizer=described)
        expected, _ = real.normalized(described, arrays)
        read = restore_normalizer(there)
        assert read is not None
        np.testing.assert_allclose(read.transform(data).features, expected, atol=1e-5)
        write_model(mine, here, normalizer=normalizer.fit(data), dl4j_version=matrix.SHAPES[real.version])
        found, _ = real.normalized(here, arrays)
        np.testing.assert_allclose(found, normalizer.transform(data).features, atol=1e-5)
    scaled = theirs.new("NormalizerStandardize", calls=[("fitLabel", True)])
    real.build(network, arrays, save=there, normalizer=scaled)
    with pytest.raises(ModelError, match="also scales labels"):
        restore_normalizer(there)
