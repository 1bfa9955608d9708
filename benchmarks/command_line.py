"""Command line of the scripts in this folder: ``--help`` needs no contender, and a missing contender is reported."""

from __future__ import annotations

import argparse
import importlib.util
import sys

INSTALL = "./install bench"  # in the clone: installs all contenders


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is a script's docstring."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def cluster_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser for a script that starts servers and prints a ``measured.Report``."""
    made = parser(description)
    made.add_argument("--format", choices=("text", "json"), default="text", help="of the figures (text)")
    return made


def require(*modules: str) -> None:
    """End with status 2 if one of the modules is not installed, and print the command that installs it."""
    for module in modules:
        if not is_installed(module):
            print(f"this benchmark needs {module}, which is not installed: type '{INSTALL}'", file=sys.stderr)
            raise SystemExit(2)


def is_installed(module: str) -> bool:
    """Return whether a module can be imported."""
    return importlib.util.find_spec(module) is not None
