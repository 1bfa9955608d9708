"""Keeps what a few networks of the real Deeplearning4j wrote and answered, for tests that have no Java.

``python -m tests.interop.golden`` writes ``tests/data/dl4j/interop`` again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tests.interop import matrix
from tests.interop.real_dl4j import VERSIONS, running

FOLDER = Path(__file__).parent.parent / "data" / "dl4j" / "interop"
KEPT = {
    "0.9.1": (
        "BatchNormalization: eps",
        "Convolution1DLayer: kernel 3",
        "ConvolutionLayer: LeNet, flat input",
        "ConvolutionLayer: LeNet, images",
        "FrozenLayer",
        "LocalResponseNormalization",
        "Loss weights",
        "Subsampling1DLayer: kernel 2 stride=2",
        "SubsamplingLayer: AVG padded",
        "SubsamplingLayer: MAX padded",
    ),
    "1.0.0-M2.1": (
        "BatchNormalization: images",
        "BatchNormalization: log std",
        "Convolution1DLayer: kernel 2 stride=2",
        "ConvolutionLayer: LeNet, flat input",
        "ConvolutionLayer: LeNet, images",
        "ConvolutionLayer: NHWC",
        "ConvolutionLayer: no bias",
        "ConvolutionLayer: softmax",
        "DuplicateToTimeSeriesVertex",
        "ElementWiseVertex: of inputs",
        "EmbeddingLayer: bias False",
        "GlobalPoolingLayer: MAX",
        "GlobalPoolingLayer: sequences, AVG masked",
        "LSTM: NWC",
        "Loss weights",
        "MergeVertex: images",
        "MergeVertex: of inputs",
        "StackVertex, UnstackVertex",
        "SubsamplingLayer: AVG padded",
        "SubsamplingLayer: AVG, padding counted",
    ),
}


def main() -> None:
    """Write the folder."""
    FOLDER.mkdir(exist_ok=True)
    for version in VERSIONS:
        cases = {case.name: case for case in matrix.their_cases(version)}
        with tempfile.TemporaryDirectory() as scratch, running(version, Path(scratch)) as real:
            for name in KEPT[version]:
                case = cases[name]
                path = FOLDER / f"{file_name(name)}_{'091' if version == '0.9.1' else 'm21'}.zip"
                arrays = case.arrays()
                answer = real.build(case.network, arrays, save=path, steps=case.steps)
                kept = {f"x{i}": x for i, x in enumerate(arrays["x"])}
                kept |= {f"fm{i}": mask for i, mask in enumerate(arrays.get("fm", []))}
                np.savez_compressed(path.with_suffix(".npz"), y=answer.outputs[0].astype("f4"), **kept)


def file_name(name: str) -> str:
    """Return a file's name for a network's."""
    return "".join(c if c.isalnum() else "_" for c in name)


if __name__ == "__main__":
    main()
