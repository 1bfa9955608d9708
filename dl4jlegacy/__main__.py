"""``python -m dl4jlegacy`` is ``dl4j``."""

from dl4jlegacy.cli.start import dl4j

dl4j()
