"""Prints ``yes`` if a run is kept below a prefix in S3: ``python -m dl4jlegacy.aws.kept_run s3://bucket/prefix``.

A master's instance asks before it begins a run: the one that it is to lead may have begun on an instance that was lost.
"""

from __future__ import annotations

import argparse
import sys

from dl4jlegacy.storage.s3.folder import S3Folder
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.system.console import emit, run_guarded

__all__ = ["is_kept", "main"]


def is_kept(url: str) -> bool:
    """Return whether there is a run's ``conf.json``; raises ``ConfError`` and what AWS says."""
    try:
        S3Folder(Location.parse(url)).read("conf.json")
    except FileNotFoundError:
        return False
    return True


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dl4jlegacy.aws.kept_run")
    parser.add_argument("url")
    args = parser.parse_args(arguments)
    sys.exit(run_guarded(lambda: emit("yes" if is_kept(args.url) else "")))


if __name__ == "__main__":
    main()
