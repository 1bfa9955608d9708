"""The model zoo: networks with their training defaults, by the names for ``--model``."""

from dl4jlegacy.nn.zoo.catalogue import (
    ZOO,
    ZooModel,
    dbn,
    for_multi_label,
    for_regression,
    mlp,
    sda,
    select,
    select_for,
)
from dl4jlegacy.nn.zoo.images import alexnet_small, cnn, lenet
from dl4jlegacy.nn.zoo.models import char_lstm, deep_autoencoder, lstm, vae, word_lstm
from dl4jlegacy.nn.zoo.residual import is_residual, residual_mlp

__all__ = [
    "ZOO",
    "ZooModel",
    "alexnet_small",
    "char_lstm",
    "cnn",
    "dbn",
    "deep_autoencoder",
    "for_multi_label",
    "for_regression",
    "is_residual",
    "lenet",
    "lstm",
    "mlp",
    "residual_mlp",
    "sda",
    "select",
    "select_for",
    "vae",
    "word_lstm",
]
