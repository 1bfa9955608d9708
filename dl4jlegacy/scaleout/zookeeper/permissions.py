"""Access rights to nodes in Zookeeper, by path.

Nodes that belong to an id, ``/dl4jlegacy/<id>`` with its subtree and ``/<host>:<port>/tmp/<id>``, are for processes
that know the run's secret. They authenticate with a key for this id, so that a false server learns from the processes
of one run nothing about another run. In the folders above, everybody may add nodes and remove empty ones; but nobody
may change the rights of these folders, since that would allow locking all others out. ``guard_roots`` creates these
folders when a server starts.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from kazoo.security import ACL, OPEN_ACL_UNSAFE, Permissions, make_acl, make_digest_acl

__all__ = ["CLOCK", "ENDED", "OPEN", "ROOT", "Rights", "is_open", "is_same", "owner_of", "shown"]

USER = "dl4jlegacy"
ROOT, ENDED, CLOCK = "/dl4jlegacy", "/dl4jlegacy-ended", "/dl4jlegacy-clock"
OPEN = tuple(OPEN_ACL_UNSAFE)
"""Rights with which everybody may do everything."""
_LETTERS = {Permissions.READ: "r", Permissions.WRITE: "w", Permissions.CREATE: "c", Permissions.DELETE: "d"}
_LETTERS[Permissions.ADMIN] = "a"


def owner_of(path: str) -> str:
    """Return the owner of a node: ``"run <id>"``, ``"end <incarnation>"``; "" for a folder above these."""
    first, *names = path.strip("/").split("/")
    if names and f"/{first}" == ENDED:
        return f"end {names[0]}"
    if names and f"/{first}" == ROOT:
        return f"run {names[0]}"
    return f"run {names[1]}" if len(names) > 1 and names[0] == "tmp" and ":" in first else ""


class Rights:
    """The rights that a process gives to nodes, and the keys with which it accesses them.

    Args:
        secret: of the run; None: everybody may do everything with the nodes of an id.
    """

    def __init__(self, secret: bytes | None) -> None:
        self.secret = secret

    def derived(self, purpose: str) -> str:
        """Return a key derived from the secret for one purpose; the secret itself is neither sent nor stored."""
        return hmac.digest(self.secret or b"", f"dl4jlegacy zookeeper {purpose}".encode(), hashlib.sha256).hex()

    def _key(self, owner: str) -> str:
        return self.derived(f"acl {owner}" if owner else "folders")

    def credential(self, path: str) -> str | None:
        """Return the credential to send to a server before a node is used; None without a secret."""
        return None if self.secret is None else f"{USER}:{self._key(owner_of(path))}"

    def of_node(self, path: str) -> list[ACL] | None:
        """Return the rights of a node that only processes with the secret may use; None: rights for everybody."""
        return None if self.secret is None else [make_digest_acl(USER, self._key(owner_of(path)), all=True)]

    def of_folder(self) -> list[ACL]:
        """Return the rights of a folder above those of the ids, whichever process creates it."""
        return [make_acl("world", "anyone", read=True, create=True, delete=True)]

    def of_server(self, *, removes: bool, adds: bool = True) -> list[ACL]:
        """Return the rights of a folder that is created at a server's start: with a secret, others may only read.

        Args:
            removes: whether empty nodes in it may be removed.
            adds: whether nodes may be added.
        """
        if self.secret is None:
            return [make_acl("world", "anyone", read=True, create=adds, delete=removes)]
        ours = make_digest_acl(USER, self._key(""), read=True, create=adds, delete=removes)
        return [ours, make_acl("world", "anyone", read=True)]


def is_open(acl: Sequence[ACL]) -> bool:
    """Return whether these rights allow everybody to do everything."""
    return tuple(acl) == OPEN


def is_same(acl: Sequence[ACL], other: Sequence[ACL]) -> bool:
    """Return whether two nodes have the same rights, as far as the server reveals them.

    To processes that may not change the rights, the server shows the digest of a password as ``x``.
    """
    are_shown = not any(each.id.scheme == "digest" and each.id.id.endswith(":x") for each in (*acl, *other))
    return _comparable(acl, are_shown) == _comparable(other, are_shown)


def _comparable(acl: Sequence[ACL], are_shown: bool) -> list[tuple[int, str, str]]:
    return sorted((a.perms, a.id.scheme, a.id.id if are_shown else a.id.id.partition(":")[0]) for a in acl)


def shown(acl: Sequence[ACL]) -> str:
    """Return rights in the notation of Zookeeper's shell, for messages; of a password only the user's name."""
    entries = []
    for each in acl:
        name = each.id.id.partition(":")[0] if each.id.scheme == "digest" else each.id.id
        letters = "".join(letter for bit, letter in _LETTERS.items() if each.perms & bit)
        entries.append(f"{each.id.scheme}:{name}:{letters or 'none'}")
    return ", ".join(entries) or "none"
