"""All layers of a network, and ``Layer``: the union of their classes, which JSON distinguishes by ``type``.

This module defines the dense layer; every other kind, or family of kinds, has a module of its own.
"""

from __future__ import annotations

import msgspec

from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.bidirectional import Bidirectional, GravesBidirectionalLSTM, LastTimeStep
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer, ConvolutionLayer
from dl4jlegacy.nn.layers.elementwise import ActivationLayer, DropoutLayer, ZeroPadding1DLayer, ZeroPaddingLayer
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.loss_layers import CenterLossOutputLayer, LossLayer
from dl4jlegacy.nn.layers.lstm import LSTM, GravesLSTM
from dl4jlegacy.nn.layers.normalization import BatchNormalization, LocalResponseNormalization
from dl4jlegacy.nn.layers.output import BaseOutputLayer, OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.layers.subsampling import GlobalPoolingLayer, Subsampling1DLayer, SubsamplingLayer
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder

__all__ = [
    "LSTM",
    "RBM",
    "ActivationLayer",
    "AutoEncoder",
    "BaseOutputLayer",
    "BatchNormalization",
    "Bidirectional",
    "CenterLossOutputLayer",
    "Convolution1DLayer",
    "ConvolutionLayer",
    "DenseLayer",
    "DropoutLayer",
    "EmbeddingLayer",
    "FeedForwardLayer",
    "FrozenLayer",
    "GlobalPoolingLayer",
    "GravesBidirectionalLSTM",
    "GravesLSTM",
    "LastTimeStep",
    "Layer",
    "LocalResponseNormalization",
    "LossLayer",
    "OutputLayer",
    "PretrainLayer",
    "RnnOutputLayer",
    "Subsampling1DLayer",
    "SubsamplingLayer",
    "VariationalAutoencoder",
    "ZeroPadding1DLayer",
    "ZeroPaddingLayer",
]


class DenseLayer(FeedForwardLayer, tag="dense"):
    """Fully connected layer: ``y = activation(x W + b)``."""


Layer = (
    DenseLayer
    | OutputLayer
    | RBM
    | AutoEncoder
    | ConvolutionLayer
    | Convolution1DLayer
    | SubsamplingLayer
    | Subsampling1DLayer
    | GlobalPoolingLayer
    | ZeroPaddingLayer
    | ZeroPadding1DLayer
    | BatchNormalization
    | LocalResponseNormalization
    | ActivationLayer
    | DropoutLayer
    | LossLayer
    | CenterLossOutputLayer
    | LSTM
    | GravesLSTM
    | GravesBidirectionalLSTM
    | Bidirectional
    | LastTimeStep
    | RnnOutputLayer
    | EmbeddingLayer
    | VariationalAutoencoder
)

PretrainLayer = RBM | AutoEncoder | VariationalAutoencoder
"""Layers that can be pretrained without labels."""


def FrozenLayer(layer: Layer) -> Layer:  # noqa: N802  # a class in DL4J
    """Return ``layer`` frozen: the layer always works as in prediction, and its parameters never change.

    Legacy: ``org.deeplearning4j.nn.conf.layers.misc.FrozenLayer``.
    """
    return msgspec.structs.replace(layer, frozen=True)
