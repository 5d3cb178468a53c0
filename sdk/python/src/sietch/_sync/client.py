# Made of _async/client.py by tools/unasync.py; change that, and run it.
"""A server: all that is not about one sandbox."""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, Optional, Sequence

import httpx

from .. import _address, _calls
from .._calls import Call, Duration, PortSpec, Size
from .._decode import decode
from ..errors import ProtocolError, SietchError
from ..models import (
    Commit,
    DoctorReport,
    Event,
    Fork,
    FsckReport,
    GCReport,
    Health,
    SandboxInfo,
    Stats,
    UsageReport,
    Version,
)
from .images import Images
from .refs import Branches, Tags
from .sandbox import Sandbox
from .wire import Stream, Wire, EventReader, read_objects


class Client:
    """A sietch server.

    ``url`` is ``http://HOST:PORT``, ``https://…`` or ``unix:///PATH``; without it
    SIETCH_URL says, else it is the server of this machine: the socket in the data
    directory where there is one, else port 7000 of the loopback. ``token`` is
    needed where the server wants one; without it SIETCH_TOKEN says.

    ``timeout``, in seconds, is for connecting and for answers that come at once.
    What may take long (a command, a build, a boot) is waited for without limit.
    A call that reached nobody is tried again ``retries`` times.

    ``verify``: a file or directory of certificates to trust, an SSL context, or
    False to trust anybody. ``transport`` replaces how HTTP is spoken, for tests.

    Safe to be used by many at a time.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        timeout: float = 60.0,
        retries: int = 2,
        verify: _address.Verify = True,
        transport: Optional[httpx.BaseTransport] = None,
    ) -> None:
        self._wire = Wire(url, token, timeout, retries, verify, transport)
        #: Root file systems to boot.
        self.images = Images(self._wire)
        self.branches = Branches(self._wire)
        self.tags = Tags(self._wire)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the connections; sandboxes stay. Idempotent."""
        self._wire.close()

    @property
    def url(self) -> str:
        """Where the server is."""
        a = self._wire.address
        return f"unix://{a.uds}" if a.uds else a.url

    # --- sandboxes

    def run(
        self,
        from_: str,
        *,
        name: Optional[str] = None,
        cpus: Optional[int] = None,
        memory: Optional[Size] = None,
        disk: Optional[Size] = None,
        ports: Sequence[PortSpec] = (),
        env: Optional[Mapping[str, str]] = None,
        workdir: Optional[str] = None,
        user: Optional[str] = None,
        network: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        message: Optional[str] = None,
        args: Optional[Sequence[str]] = None,
        from_disk: bool = False,
        nested: bool = False,
        ttl: Optional[Duration] = None,
        idempotency_key: Optional[str] = None,
    ) -> Sandbox:
        """Makes a sandbox of an image or a commit; it is ready when this returns.

        ``memory`` and ``disk`` are bytes, or text such as ``"512M"``. ``ports``
        are forwarded: a number is the guest's, text is ``[IP:]HOST:GUEST``.
        ``message``: commit it as soon as it is ready. ``args`` replace the image's
        command. ``from_disk``: boot a commit's disk cold. ``ttl``: remove it after
        so many seconds.
        """
        request = _calls.run_request(
            from_,
            name=name,
            cpus=cpus,
            memory=memory,
            disk=disk,
            ports=ports,
            env=env,
            workdir=workdir,
            user=user,
            network=network,
            labels=labels,
            message=message,
            args=args,
            from_disk=from_disk,
            nested=nested,
            ttl=ttl,
        )
        call = Call(
            "POST",
            _calls.path("sandboxes"),
            json=request,
            headers=_calls.key(idempotency_key),
            slow=True,
        )
        info = self._wire.value(call, SandboxInfo)
        ready = info.timing.ready_ms if info.timing else None
        return Sandbox(self, info.name, ready_ms=ready, made=True)

    def sandbox(self, name: str) -> Sandbox:
        """A sandbox by its name. Nothing is asked of the server, and leaving a
        ``with`` of it does not remove it."""
        return Sandbox(self, name)

    def list(self, *, all: bool = False) -> List[SandboxInfo]:
        """The sandboxes, oldest first; ``all``: also those that do not run."""
        return self._wire.value(
            Call("GET", _calls.path("sandboxes"), query=_calls.query(all=all)), List[SandboxInfo]
        )

    def fork(
        self,
        from_: str,
        n: int = 1,
        *,
        prefix: Optional[str] = None,
        branch: bool = False,
        labels: Optional[Mapping[str, str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> List[Sandbox]:
        """Makes ``n`` live copies of a sandbox or a commit, and waits for all.

        ``branch`` gives each a branch of its own. When some do not come up, the
        others stay, and the error tells them in ``forks``.
        """
        copies: List[Sandbox] = []
        ready: List[Fork] = []
        try:
            for told in self._forks(from_, n, prefix, branch, labels, idempotency_key):
                ready.append(told)
                copies.append(self._copy(told))
        except SietchError as error:
            error.forks = ready
            raise
        if len(copies) != n:
            raise ProtocolError(f"the server told of {len(copies)} copies of {n}")
        return copies

    def fork_stream(
        self,
        from_: str,
        n: int = 1,
        *,
        prefix: Optional[str] = None,
        branch: bool = False,
        labels: Optional[Mapping[str, str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> Iterator[Sandbox]:
        """:meth:`fork`, which gives each copy as soon as it is ready."""
        for told in self._forks(from_, n, prefix, branch, labels, idempotency_key):
            yield self._copy(told)

    def _forks(
        self,
        from_: str,
        n: int,
        prefix: Optional[str],
        branch: bool,
        labels: Optional[Mapping[str, str]],
        idempotency_key: Optional[str],
    ) -> Iterator[Fork]:
        request = _calls.body(
            **{"from": from_},
            n=n,
            prefix=prefix,
            branch=branch or None,
            labels=_calls.label_map(labels),
        )
        call = Call(
            "POST", _calls.path("forks"), json=request, headers=_calls.key(idempotency_key), slow=True
        )
        with Stream(self._wire, call, read_objects) as lines:
            for line in lines:
                yield decode(Fork, line)

    def _copy(self, told: Fork) -> Sandbox:
        return Sandbox(self, told.name, ready_ms=told.ready_ms, made=True)

    # --- history

    def log(self, ref: Optional[str] = None, *, n: Optional[int] = None) -> List[Commit]:
        """History, newest first: of a REF, or of every branch, tag and HEAD."""
        return self._wire.value(
            Call("GET", _calls.path("commits"), query=_calls.query(ref=ref, n=n)), List[Commit]
        )

    def show(self, ref: str) -> Commit:
        """The commit that a REF names."""
        return self._wire.value(Call("GET", _calls.path("commits", ref)), Commit)

    # --- storage

    def gc(self, *, dry_run: bool = False) -> GCReport:
        """Frees what nothing needs any more."""
        return self._wire.value(
            Call("POST", _calls.path("gc"), query=_calls.query(dry_run=dry_run), slow=True), GCReport
        )

    def fsck(self) -> FsckReport:
        """Reads everything that is stored and checks it."""
        return self._wire.value(Call("GET", _calls.path("fsck"), slow=True), FsckReport)

    def du(self) -> UsageReport:
        """What the data directory holds, by use."""
        return self._wire.value(Call("GET", _calls.path("du"), slow=True), UsageReport)

    def stats(self) -> List[Stats]:
        """What every running sandbox uses at this moment."""
        return self._wire.value(Call("GET", _calls.path("stats")), List[Stats])

    # --- the server

    def events(self, *, after: Optional[int] = None, follow: bool = True) -> Stream[Event]:
        """What happens, whoever causes it.

        ``after``: begin behind the event of this id, 0 for the oldest that is
        kept; without it only new ones come. ``follow=False`` ends with the last
        that has happened.
        """
        query = _calls.query(after=after)
        if not follow:
            query.append(("follow", "false"))
        call = Call("GET", _calls.path("events"), query=query, slow=True)
        return Stream(self._wire, call, EventReader(Event))

    def doctor(self) -> DoctorReport:
        """Whether the server's host can run sandboxes, and what would help."""
        return self._wire.value(Call("GET", _calls.path("doctor"), slow=True), DoctorReport)

    def version(self) -> Version:
        return self._wire.value(Call("GET", _calls.path("version")), Version)

    def health(self) -> Health:
        """Whether the server answers."""
        return self._wire.value(Call("GET", "/healthz"), Health)

    def ready(self) -> Health:
        """Whether the server can serve, and what of it fails."""
        return self._wire.value(Call("GET", "/readyz", accept=(503,)), Health)

    def metrics(self) -> str:
        """Metrics in Prometheus' text format."""
        return (self._wire.send(Call("GET", "/metrics"))).text

    def openapi(self) -> str:
        """The document that describes the API."""
        return (self._wire.send(Call("GET", _calls.path("openapi.yaml")))).text
