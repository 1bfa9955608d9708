"""Has the real Keras write models and what they answer to ``tests/data/keras``, for tests that have no Keras.

``python tests/nn/modelimport/golden.py keras`` in an environment with TensorFlow writes the files of Keras 3, with
``tf_keras`` those of Keras 2; further words are the names of the only models to write. Each ``.npz`` has inputs
(``x0``, ...) and outputs (``y0``, ...) as Keras has them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[2] / "data" / "keras"
Model = tuple[str, Any, tuple[tuple[int, ...], ...]]


def models(keras: Any) -> Iterator[Model]:
    """Yield name, model and the shapes of its inputs."""
    layers = keras.layers
    yield from stacks(keras, layers)
    yield from graphs(keras, layers)


def stacks(keras: Any, layers: Any) -> Iterator[Model]:
    """Yield chains of layers."""

    def stack(name: str, shape: tuple[Any, ...], *each: Any, steps: int = 6) -> Model:
        sizes = tuple(steps if size is None else size for size in shape)
        return name, keras.Sequential([keras.Input(shape), *each]), (sizes,)

    dense, softmax = layers.Dense(5, activation="tanh"), layers.Dense(3, activation="softmax")
    yield stack("dense", (4,), dense, layers.BatchNormalization(), layers.Dropout(0.3), softmax)
    functions = ("elu", "relu", "selu", "sigmoid", "softplus", "softsign", "swish")
    yield stack("functions", (4,), *(layers.Dense(5, activation=name) for name in functions), layers.Dense(2))
    ends = (layers.Dense(3, use_bias=False), layers.Activation("softmax"))
    yield stack("activation", (4,), layers.Dense(6), layers.ReLU(), layers.ELU(), layers.Softmax(), *ends)
    yield stack(
        "convolution",
        (9, 8, 2),
        layers.Conv2D(4, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(2),
        layers.BatchNormalization(scale=False),
        layers.ZeroPadding2D(((1, 0), (0, 2))),
        layers.Conv2D(3, (2, 3), strides=(2, 1), use_bias=False),
        layers.AveragePooling2D((2, 1), strides=1, padding="same"),
        layers.Flatten(),
        layers.BatchNormalization(center=False),
        layers.Dropout(0.5),
        layers.Dense(5, activation="relu"),
        layers.Dense(3, activation="softmax"),
    )
    yield stack("pooled", (7, 6, 1), layers.Conv2D(4, 2, dilation_rate=2), layers.GlobalMaxPooling2D(), layers.Dense(2))
    yield stack(
        "average", (7, 6, 1), layers.Conv2D(4, 2, activation="tanh"), layers.GlobalAveragePooling2D(), layers.Dense(2)
    )
    yield stack(
        "time",
        (None, 3),
        layers.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="tanh"),
        layers.Conv1D(4, 2, padding="same"),
        layers.BatchNormalization(),
        layers.MaxPooling1D(2),
        layers.ZeroPadding1D((1, 2)),
        layers.AveragePooling1D(2, strides=1),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1, activation="sigmoid"),
    )
    yield stack("lstm", (None, 3), layers.LSTM(4, return_sequences=True, dropout=0.1), layers.LSTM(5), layers.Dense(2))
    yield stack("labels", (None, 3), layers.LSTM(4, return_sequences=True, use_bias=False), layers.Dense(5), softmax)
    yield stack(
        "both",
        (None, 3),
        layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        layers.TimeDistributed(layers.Dense(2)),
    )
    for mode in ("sum", "mul", "ave"):
        both = layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode=mode)
        yield stack(f"both_{mode}", (None, 3), both, layers.GlobalMaxPooling1D(), layers.Dense(2))
    yield stack("words", (None,), layers.Embedding(9, 4), layers.LSTM(5), layers.Dense(1, activation="sigmoid"))
    yield stack("words_flat", (6,), layers.Embedding(9, 4), layers.Flatten(), layers.Dense(3, activation="softmax"))
    yield stack("steps_flat", (6, 3), layers.LSTM(4, return_sequences=True), layers.Flatten(), layers.Dense(3))
    yield stack("rows_flat", (6, 3), layers.Dense(4, activation="tanh"), layers.Flatten(), layers.Dense(3))
    fewer = (layers.MaxPooling1D(2, padding="same"), layers.Flatten(), layers.Dense(3))
    yield stack("pooled_flat", (5, 3), layers.BatchNormalization(), *fewer)
    fewer = (layers.Conv1D(2, 2), layers.Dense(4, activation="tanh"), layers.MaxPooling1D(2), layers.Flatten())
    yield stack("shortened_flat", (7, 3), layers.Dense(3, activation="tanh"), *fewer, layers.Dense(3))
    yield stack(
        "padded_flat", (5, 3), layers.BatchNormalization(), layers.ZeroPadding1D(1), layers.Flatten(), layers.Dense(3)
    )


def graphs(keras: Any, layers: Any) -> Iterator[Model]:
    """Yield functional models."""
    x = keras.Input((4,), name="rows")
    yield "functional", keras.Model(x, layers.Dense(3, activation="softmax")(layers.Dense(5)(x))), ((4,),)
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    first, second = layers.Dense(5, activation="tanh")(a), layers.Dense(5, activation="relu")(b)
    every = [
        layers.Add()([first, second]),
        layers.Subtract()([first, second]),
        layers.Multiply()([first, second]),
        layers.Average()([first, second]),
        layers.Maximum()([first, second]),
    ]
    whole = layers.Concatenate()(every)
    ends = [layers.Dense(3, activation="softmax", name="kind")(whole), layers.Dense(1, name="size")(first)]
    yield "several", keras.Model([a, b], ends), ((4,), (3,))
    image = keras.Input((6, 5, 2), name="image")
    conv = layers.Conv2D(2, 3, padding="same", activation="relu")(image)
    both = layers.Concatenate()([layers.Add()([conv, image]), conv])
    flat = layers.Concatenate()([layers.Flatten()(both), layers.Flatten()(layers.Conv2D(1, 2)(conv)), a])
    found = layers.Dense(3, activation="softmax")(layers.Dropout(0.2)(flat))
    yield "residual", keras.Model([image, a], found), ((6, 5, 2), (4,))
    index, steps = keras.Input((5,), name="index"), keras.Input((5, 2), name="steps")
    merged = layers.Concatenate()([layers.Embedding(9, 3)(index), steps])
    last = layers.LSTM(4)(layers.LSTM(4, return_sequences=True)(merged))
    yield "index", keras.Model([index, steps], layers.Dense(2)(last)), ((5,), (5, 2))
    ends = [layers.Dense(4, activation="tanh"), layers.BatchNormalization()]
    yield "normalized", keras.Sequential([keras.Input((None, 3)), *ends]), ((6, 3),)


KEPT = ("dense", "convolution", "both", "several")
"""Models of which there are files of both kinds."""

LOSSES = {"dense": "categorical_crossentropy", "lstm": "mse", "words": "binary_crossentropy", "functional": "mae"}


def main(library: str, *names: str) -> None:
    """Write the files of one library, ``keras`` or ``tf_keras``, those of some names only if any are given."""
    keras = importlib.import_module(library)
    FOLDER.mkdir(exist_ok=True)
    for number, (name, model, shapes) in enumerate(models(keras)):
        if names and name not in names:
            continue
        rng = np.random.default_rng(number)
        for layer in model.layers:  # weights that began as zeros or ones must matter
            layer.set_weights([w + 0.1 * np.abs(rng.standard_normal(w.shape)) for w in layer.get_weights()])
        if name in LOSSES:
            model.compile(
                "adam" if number % 2 else keras.optimizers.SGD(0.05, momentum=0.5, nesterov=True), LOSSES[name]
            )
        takes_words = [(len(shape) == 1 and kind.name == "index") or name.startswith("words") for shape, kind in
                       zip(shapes, model.inputs, strict=True)]  # fmt: skip
        x = [
            rng.integers(0, 9, (3, *shape)).astype("f4") if words else rng.standard_normal((3, *shape)).astype("f4")
            for shape, words in zip(shapes, takes_words, strict=True)
        ]
        answered = model.predict(x if len(x) > 1 else x[0], verbose=0)
        y = answered if isinstance(answered, list) else [answered]
        path = FOLDER / f"{name}_{'3' if library == 'keras' else '2'}"
        kept = {f"x{i}": each for i, each in enumerate(x)} | {f"y{i}": each for i, each in enumerate(y)}
        np.savez_compressed(path.with_suffix(".npz"), **kept)
        usual, other = (".keras", ".h5") if library == "keras" else (".h5", ".keras")
        for ending in (usual, other) if number % 4 == 0 or name in KEPT else (usual,):
            model.save(path.with_suffix(ending))


if __name__ == "__main__":
    main(*sys.argv[1:])
