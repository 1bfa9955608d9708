"""dl4jlegacy: elastic data-parallel training of neural networks, after the legacy Deeplearning4j scale-out.

::

    from dl4jlegacy import ActorNetworkRunner, Conf, DigitsDataSetIterator

The public names stand in ``__init__.pyi``. They are loaded when they are first used (PEP 562), so that ``import
dl4jlegacy`` costs next to nothing and pulls in no compiler, no actors and no terminal library.
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

_OF_SERVERS = ("HazelcastStateTracker", "ZooKeeperConfigurationRegister", "ZookeeperConfigurationRetriever")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in __all__ if name not in _OF_SERVERS]  # ``import *`` loads no server's client

logging.getLogger(__name__).addHandler(logging.NullHandler())
