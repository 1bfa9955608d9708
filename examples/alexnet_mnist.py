"""A small AlexNet on MNIST, on several workers: local response normalization, overlapping pooling, drop-out.

    python examples/alexnet_mnist.py [--examples N] [--workers N] [--epochs N]

MNIST is looked for in $DL4J_DATA_DIR and ~/.deeplearning4j, else downloaded. An epoch of all of it takes minutes.
"""

import argparse

from dl4jlegacy import ActorNetworkRunner, Conf, MnistDataSetIterator
from dl4jlegacy.nn.zoo import alexnet_small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (("--examples", 10000), ("--workers", 4), ("--epochs", 3)):
        parser.add_argument(flag, type=int, default=default)
    args = parser.parse_args()
    conf = Conf(
        multi_layer_conf=alexnet_small(784, 10),
        workers=args.workers,
        jobs_per_round=args.workers,
        epochs=args.epochs,
        batch_size=32,
        averaging_frequency=5,
    )
    with ActorNetworkRunner("master", MnistDataSetIterator(32, args.examples)) as runner:
        runner.setup(conf)
        result = runner.train()
        print(runner.network(result).evaluate(MnistDataSetIterator(500, 2000, train=False)).stats())
    print(f"{result.head.examples} examples in {result.seconds:.1f} s, {result.batches_lost} batches lost")


if __name__ == "__main__":
    main()
