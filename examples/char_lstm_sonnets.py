"""An LSTM that learns Shakespeare's sonnets, character by character, and then goes on by itself.

python examples/char_lstm_sonnets.py [--epochs N] [--characters N] [--temperature X] [--text FILE.txt]
"""

import argparse

import numpy as np

from dl4jlegacy import MultiLayerNetwork, TrainedModel
from dl4jlegacy.datasets import CharacterIterator, read_sonnets
from dl4jlegacy.datasets.reading import Reading
from dl4jlegacy.datasets.text.characters import read_text
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.models.generation import generate_text
from dl4jlegacy.nn.zoo import char_lstm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--characters", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--text", help="another text than the sonnets, UTF-8")
    args = parser.parse_args()

    text = read_text(args.text) if args.text else read_sonnets()
    iterator = CharacterIterator(text, 16, 64, stride=32)
    characters = len(iterator.alphabet)
    network = MultiLayerNetwork(char_lstm(characters * 64, characters))
    for epoch in range(args.epochs):
        network.fit(iterator)
        if epoch % 5 == 4 or epoch == args.epochs - 1:
            nats = network.score(iterator.dataset) / 64
            print(f"epoch {epoch + 1}: {nats:.3f} nats a character, perplexity {np.exp(nats):.1f}")
    model = TrainedModel(network, Reading(label_names=iterator.alphabet, text=TextReader()))
    print(text[:40], end="")
    for character in generate_text(model, text[:40], length=args.characters, temperature=args.temperature):
        print(character, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
