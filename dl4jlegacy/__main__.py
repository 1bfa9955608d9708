"""``python -m dl4jlegacy`` is ``dl4j``."""

from dl4jlegacy.cli.main import main

main()
