"""Handwritten digits squeezed into a few numbers and rebuilt from them: Hinton and Salakhutdinov's deep autoencoder.

    python examples/deep_autoencoder_digits.py [--epochs N] [--pretrain-epochs N]

A stack of RBMs is pretrained layer by layer, mirrored, and trained as a whole. The digits come with the package (UCI
repository, CC BY 4.0); a fifth of them is held out.
"""

import argparse

import numpy as np

from dl4jlegacy import MultiLayerNetwork
from dl4jlegacy.datasets import ListDataSetIterator, load
from dl4jlegacy.models.model import with_features_as_labels
from dl4jlegacy.nn.zoo import deep_autoencoder

SHADES = " .:-=+*#%@"


def picture(pixels: np.ndarray) -> list[str]:
    """An image of 8 x 8 values between 0 and 1 as eight lines."""
    shades = (pixels.reshape(8, 8).clip(0, 1) * (len(SHADES) - 1)).round().astype(int)
    return ["".join(SHADES[shade] * 2 for shade in row) for row in shades]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--pretrain-epochs", type=int, default=10)
    args = parser.parse_args()

    source = load("digits")
    train, test = with_features_as_labels(source.train), with_features_as_labels(source.test)
    network = MultiLayerNetwork(deep_autoencoder(train.n_in, train.n_out))
    iterator = ListDataSetIterator(train, 16)
    network.pretrain(iterator, epochs=args.pretrain_epochs)
    network.finetune(iterator, epochs=args.epochs)

    rebuilt = network.output(test.features)
    mean = ((test.features - train.features.mean(axis=0)) ** 2).mean()
    error = ((test.features - rebuilt) ** 2).mean()
    print(f"squared error of a held-out pixel: {error:.4f}, of the training set's mean image {mean:.4f}")
    for lines in zip(*(picture(image) for image in (*test.features[:2], *rebuilt[:2])), strict=True):
        print("   ".join(lines))
    print("above: two held-out digits, and what 8 numbers each say of them")


if __name__ == "__main__":
    main()
