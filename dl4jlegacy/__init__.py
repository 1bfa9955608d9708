"""dl4jlegacy: elastic data-parallel training of neural networks, after the legacy Deeplearning4j scale-out."""

import logging

from dl4jlegacy.version import __version__

__all__ = ["__version__"]

logging.getLogger(__name__).addHandler(logging.NullHandler())
