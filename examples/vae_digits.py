"""A variational autoencoder that learns handwritten digits and then draws some of its own.

    python examples/vae_digits.py [--epochs N] [--draw N]

The digits come with the package (UCI repository, CC BY 4.0); a fifth of them is held out.
"""

import argparse

import numpy as np

from dl4jlegacy import MultiLayerNetwork
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import ListDataSetIterator, load
from dl4jlegacy.models.model import evaluate_network, with_features_as_labels
from dl4jlegacy.nn import generate_at_mean_given_z
from dl4jlegacy.nn.zoo import vae

SHADES = " .:-=+*#%@"


def picture(pixels: np.ndarray) -> list[str]:
    """An image of 8 x 8 values between 0 and 1 as eight lines."""
    shades = (pixels.reshape(8, 8).clip(0, 1) * (len(SHADES) - 1)).round().astype(int)
    return ["".join(SHADES[shade] * 2 for shade in row) for row in shades]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--draw", type=int, default=4)
    args = parser.parse_args()

    source = load("digits")
    train, test = with_features_as_labels(source.train), with_features_as_labels(source.test)
    network = MultiLayerNetwork(vae(train.n_in, train.n_out))
    print(f"loss of a held-out digit before training: {evaluate_network(network, test, ()).loss:.2f} nats")
    network.pretrain(ListDataSetIterator(train, 16), epochs=args.epochs)
    print(f"and after {args.epochs} epochs: {evaluate_network(network, test, ()).loss:.2f} nats")

    latent = Stream.of(network.conf.conf.seed).at(purpose="draw").generator().standard_normal((args.draw, 8))
    drawn = generate_at_mean_given_z(network, latent)
    for lines in zip(*(picture(image) for image in drawn), strict=True):
        print("   ".join(lines))


if __name__ == "__main__":
    main()
