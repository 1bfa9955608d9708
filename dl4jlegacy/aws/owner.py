"""The owner of a cluster, and the ``up`` that works on it: one object in the cluster's bucket, ``owner.json``.

The object changes only by compare-and-set (``conditional_object``): of two users, or of two concurrent ``up``, exactly
one writes it. A running ``up`` rewrites the object again and again; an ``up`` that has not written for a while was
killed, and the next one takes over. Both times for that are S3's own: no machine's clock matters.

Removing a cluster removes the object last, so that a partly removed cluster still has an owner.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

import msgspec

from dl4jlegacy.aws.calls import attempts
from dl4jlegacy.aws.cluster_spec import OWNER, Names, utc
from dl4jlegacy.errors import CloudError, ConfError, DeadlineError, Dl4jError
from dl4jlegacy.storage.s3.conditional_object import ConditionalObject
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.strict_json import to_json

__all__ = ["SILENT_SECONDS", "Owner", "Ownership", "owner_of"]

logger = logging.getLogger(__name__)

SILENT_SECONDS = 180.0
"""Seconds without a write after which an ``up`` counts as ended."""
_WAIT_SECONDS = 900.0
_MADE_UP_SESSION = re.compile(r"(:assumed-role/[^/]+)/(?:botocore-session|AWS-CLI-session)-\d+$")


@dataclass(frozen=True, slots=True)
class Owner:
    """The content of the object.

    Attributes:
        arn: of the owner.
        since: time of the first ``up``, in the format of tags.
        up: random id of the last ``up`` on the cluster.
        working: whether that ``up`` is still running.
        writes: number of writes; makes every version of the object different.
    """

    arn: str
    since: str
    up: str
    working: bool
    writes: int = 0


@dataclass(frozen=True, slots=True)
class _Found:
    """The object in S3: its content, its ETag, and the seconds since it was written."""

    owner: Owner
    etag: str
    age: float


def owner_of(arn: str) -> str:
    """Return the owner of a cluster for a caller's ARN, without a generated session name.

    Roles assumed through a profile get a new session name in every process, which would be a new owner.
    """
    return _MADE_UP_SESSION.sub(r"\1", arn)


class Ownership:
    """Reads and changes the owner of one cluster on behalf of one caller. Used by one thread at a time.

    Args:
        aws: the region.
        names: the cluster's.
        me: the caller, as returned by ``owner_of``.
    """

    def __init__(self, aws: Aws, names: Names, me: str) -> None:
        self._aws, self._names, self.me = aws, names, me
        self._held: tuple[Owner, str] | None = None
        self._what = f"the owner of cluster {names.cluster}, s3://{names.bucket}/{OWNER}"
        self._object = ConditionalObject(aws, Location(names.bucket, OWNER), self._what)

    def owner(self) -> Owner | None:
        """Return the cluster's owner, or None."""
        found = self._read()
        return None if found is None else found.owner

    def check(self) -> None:
        """Raise ``ConfError`` if the cluster belongs to another user."""
        self._refuse_others(self.owner())

    def _refuse_others(self, owner: Owner | None) -> None:
        if owner is None or owner.arn == self.me:
            return
        name = self._names.cluster
        raise ConfError(
            f"cluster {name} in {self._aws.region} belongs to {owner.arn} since {owner.since}, and you are {self.me}: "
            f"`up` would replace what is theirs; give yours another name, or `dl4j aws join {name}` to log in on theirs"
        )

    @contextmanager
    def held(self, make_bucket: Callable[[], object], *, others: bool = False) -> Iterator[None]:
        """Hold the cluster while no other ``up`` works on it; wait for an ``up`` that does.

        Args:
            make_bucket: creates the cluster's bucket, unless there is one.
            others: whether a cluster of another user is accepted; the other user stays its owner.

        Raises:
            ConfError: the cluster belongs to another user. DeadlineError: another ``up`` works on it all the time.
        """
        up, self._held = secrets.token_hex(8), None
        try:
            self._take(up, make_bucket, others=others)
            yield
        finally:
            self._release(up)

    def _take(self, up: str, make_bucket: Callable[[], object], *, others: bool) -> None:
        busy = ""
        for _ in attempts(self._aws, _WAIT_SECONDS, pause=5.0):
            found = self._read()
            if not others:
                self._refuse_others(None if found is None else found.owner)
            if found is None:
                make_bucket()
                if self._write(self._new(up), None):
                    return
            elif not found.owner.working or found.age > SILENT_SECONDS:
                if self._write(replace(found.owner, up=up, working=True), found.etag):
                    make_bucket()
                    return
            elif not busy:
                busy = (
                    f"another `up` of yours ({found.owner.up}) works on cluster {self._names.cluster}, and wrote "
                    f"{found.age:.0f} s ago; it counts as killed after {SILENT_SECONDS:.0f} s"
                )
                logger.warning("%s; waiting for it", busy)
        raise DeadlineError(f"{busy or self._what + ' cannot be written'}; repeat `dl4j aws up`")

    def _new(self, up: str) -> Owner:
        return Owner(self.me, utc(self._aws.clock.wall()), up, working=True)

    def keep(self) -> bool:
        """Record that this ``up`` is still running; return False if another one has taken the cluster."""
        return self._held is not None and self._write(*self._held)

    def taken_away(self) -> CloudError:
        """Return the error of an ``up`` for which ``keep`` returned False."""
        name = self._names.cluster
        return CloudError(
            f"cluster {name} was ended, or taken over by another `up`, while this one worked on it; "
            f"look with `dl4j aws status {name}`"
        )

    def take_back(self) -> bool:
        """Take the cluster again if no other ``up`` has since this one ended; return False otherwise."""
        found = self._read()
        if found is None:
            return self._write(self._new(secrets.token_hex(8)), None)
        if self._held is None or found.owner.up != self._held[0].up:
            return False
        return self._write(replace(found.owner, working=True), found.etag)

    def _release(self, up: str) -> None:
        try:
            found = self._read()
            if found is not None and found.owner.up == up and found.owner.working:
                self._write(replace(found.owner, working=False), found.etag)
        except Dl4jError as exc:
            logger.warning(
                "it could not be written down that this `up` has ended, so the next waits %.0f s for it: %s",
                SILENT_SECONDS,
                str(exc),
            )

    # --- the object ---------------------------------------------------------------------------------------------------

    def _read(self) -> _Found | None:
        found = self._object.read()
        if found is None:
            return None
        try:
            owner = msgspec.json.decode(found.body, type=decodable(Owner))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ConfError(f"{self._what} is not as this version writes it: {found.body[:80]!r}") from exc
        return _Found(owner, found.etag, found.age)

    def _write(self, owner: Owner, etag: str | None) -> bool:
        """Write the object if it still has ``etag`` (None: if there is none); return False otherwise."""
        owner = replace(owner, writes=owner.writes + 1)
        written = self._object.write(to_json(asdict(owner)).encode(), etag)
        if written is None:
            return False
        self._held = owner, written
        return True
