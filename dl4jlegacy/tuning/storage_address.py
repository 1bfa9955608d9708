"""The address of a search's storage for messages and reports: a database address may contain a password."""

from __future__ import annotations

from urllib.parse import unquote

__all__ = ["said_without", "spoken_storage"]


def spoken_storage(place: str) -> str:
    """Return a storage's path or address for messages, without its password and without the part after ``?``."""
    bare, question, _ = place.partition("?") if "://" in place else (place, "", "")
    head, at, host = bare.rpartition("@") if "://" in bare else ("", "", bare)
    scheme, _, owner = head.partition("://")
    shown = f"{scheme}://{owner.partition(':')[0]}:...@{host}" if at and ":" in owner else bare
    return f"{shown}?..." if question else shown


def said_without(exc: BaseException, place: str) -> str:
    """Return an error's text on one line, without the secrets of a storage's address."""
    said = " ".join(str(exc).split())
    head, _, _ = place.partition("://")[2].rpartition("@")
    hidden = (place, head, head.partition(":")[2], unquote(head.partition(":")[2]), place.partition("?")[2])
    for secret in filter(None, hidden):
        said = said.replace(secret, "...")
    return said[:300]
