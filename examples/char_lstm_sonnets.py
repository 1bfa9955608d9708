"""An LSTM that learns Shakespeare's sonnets, character by character, and then goes on by itself.

python examples/char_lstm_sonnets.py [--epochs N] [--characters N] [--temperature X] [--text FILE.txt]
"""

import argparse

import numpy as np

from dl4jlegacy import MultiLayerNetwork
from dl4jlegacy.datasets import CharacterIterator, read_sonnets
from dl4jlegacy.datasets.characters import one_hot_text, read_text
from dl4jlegacy.nn.zoo import char_lstm
from dl4jlegacy.seeding import Stream


def sample(
    network: MultiLayerNetwork, alphabet: tuple[str, ...], beginning: str, count: int, temperature: float
) -> str:
    """Let the network go on with ``beginning``; the lower the temperature, the more it keeps to what is probable."""
    generator = Stream.of(network.conf.conf.seed).at(purpose="sample").generator()
    network.rnn_clear_previous_state()
    probabilities = network.rnn_time_step(one_hot_text(beginning, alphabet).T[None])[0, :, -1]
    drawn = []
    for _ in range(count):
        weights = probabilities.astype(float) ** (1 / temperature)
        drawn.append(alphabet[generator.choice(len(alphabet), p=weights / weights.sum())])
        probabilities = network.rnn_time_step(one_hot_text(drawn[-1], alphabet))[0]
    return beginning + "".join(drawn)


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
    print(sample(network, iterator.alphabet, text[:40], args.characters, args.temperature))


if __name__ == "__main__":
    main()
