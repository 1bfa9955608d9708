"""dl4jlegacy: elastic data-parallel training of neural networks, after the legacy Deeplearning4j scale-out.

::

    from dl4jlegacy import ActorNetworkRunner, Conf, DigitsDataSetIterator

The public names stand in ``__init__.pyi``. ``from dl4jlegacy import *`` brings all of them but ``__version__``, of
which the program may have its own, and three that load the clients of Hazelcast and Zookeeper and are imported by name:
``HazelcastStateTracker``, ``ZooKeeperConfigurationRegister`` and ``ZookeeperConfigurationRetriever``.

They are loaded when they are first used (PEP 562), so that ``import dl4jlegacy`` costs next to nothing and pulls in no
compiler, no actors and no terminal library.
"""

import logging
import sys

if sys.argv[:1] == ["-m"] and sys.orig_argv[1:3] == [
    "-m",
    "dl4jlegacy",
]:  # a signal that comes now is to end it quietly
    from dl4jlegacy.cli import start

    start.heed_signals()

import lazy_loader

_BY_NAME = (
    "HazelcastStateTracker",
    "ZooKeeperConfigurationRegister",
    "ZookeeperConfigurationRetriever",
    "__version__",
)
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in __all__ if name not in _BY_NAME]

logging.getLogger(__name__).addHandler(logging.NullHandler())
