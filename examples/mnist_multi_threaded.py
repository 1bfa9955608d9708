"""MnistMultiThreadedExample: a master and a pool of worker threads train a deep belief network on handwritten digits.

    python examples/mnist_multi_threaded.py [--examples N] [--workers N] [--epochs N]
        [--tracker hazelcast://HOST:PORT --zookeeper HOST:PORT]

With a tracker and Zookeeper (`dl4j services up`) it is the master of a cluster; a worker of it is
`actor-network-runner -t worker -ad HOST -a dbn`. The network is that of 2014: 784 inputs, RBMs of 500, 250 and 100, a
softmax output. Without MNIST, which is downloaded if it is not there, a smaller one learns the bundled 8x8 digits.
"""

import argparse

from dl4jlegacy import (
    ActorNetworkRunner,
    Conf,
    DataError,
    DigitsDataSetIterator,
    MnistDataSetIterator,
    NeuralNetConfiguration,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (("--examples", 6000), ("--workers", 4), ("--epochs", 10)):
        parser.add_argument(flag, type=int, default=default)
    for flag, place in (("--tracker", "hazelcast://HOST:PORT"), ("--zookeeper", "HOST:PORT")):
        parser.add_argument(flag, metavar=place)
    args = parser.parse_args()
    iterator: MnistDataSetIterator | DigitsDataSetIterator
    try:
        iterator = MnistDataSetIterator(16, args.examples)
    except DataError as exc:
        print(f"no MNIST, so the bundled digits: {exc}")
        iterator = DigitsDataSetIterator(16, min(args.examples, 1797))
    sizes = (500, 250, 100) if iterator.input_columns == 784 else (128, 64)
    network = (
        NeuralNetConfiguration.builder()
        .n_in(iterator.input_columns)
        .n_out(iterator.total_outcomes)
        .seed(123)
        .use_ada_grad(True)
        .learning_rate(0.05)
        .list(len(sizes) + 1)
        .hidden_layer_sizes(*sizes)
        .pretrain(True)
        .build()
    )
    conf = Conf(multi_layer_conf=network, multi_layer_clazz="DBN", workers=args.workers, epochs=args.epochs)

    with ActorNetworkRunner("master", iterator, tracker=args.tracker, zookeeper=args.zookeeper or "") as runner:
        runner.setup(conf)
        result = runner.train()
        accuracy = runner.network(result).evaluate(iterator).accuracy()
    print(f"{result.head.examples} examples in {result.seconds:.1f} s, {result.batches_lost} batches lost")
    print(f"accuracy on the training examples: {accuracy:.4f}")


if __name__ == "__main__":
    main()
