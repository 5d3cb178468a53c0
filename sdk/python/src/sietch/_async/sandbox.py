"""One sandbox, and all that can be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AsyncIterator, List, Mapping, Optional, Sequence, Union

from .. import _calls
from .._calls import Call, Duration, PortSpec, Size
from .._decode import exec_result
from ..errors import CommandFailedError
from ..models import Commit, ExecResult, ReclaimReport, Ref, ReflogEntry, SandboxInfo, Stats
from .exec import AsyncExecStream, Input
from .files import AsyncFiles
from .ports import AsyncPorts
from .processes import AsyncProcesses
from .wire import AsyncStream, read_bytes

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncSandbox:
    """A sandbox: a machine with a HEAD, as a work tree has one.

    It is had from :meth:`run`, from a client, or from :meth:`fork`. At the end of
    a ``with``, what was made by one of these is removed; a sandbox that was only
    looked up by name stays.
    """

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        *,
        ready_ms: Optional[float] = None,
        made: bool = False,
    ) -> None:
        _calls.sandbox_path(name)
        self.name = name
        self.client = client
        #: Milliseconds from the request to the first successful exec, where this
        #: is what run, start or fork returned.
        self.ready_ms = ready_ms
        self._made = made
        self._owns_client = False
        self._wire = client._wire
        self.files = AsyncFiles(self._wire, name)
        self.processes = AsyncProcesses(self._wire, name)
        self.ports = AsyncPorts(self._wire, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @classmethod
    async def run(
        cls,
        from_: str,
        *,
        client: Optional[AsyncClient] = None,
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
    ) -> AsyncSandbox:
        """As :meth:`AsyncClient.run`; without ``client`` one of its own, which
        goes with the sandbox, is made as the environment says."""
        from .client import AsyncClient

        own = client is None
        client = client or AsyncClient()
        try:
            box = await client.run(
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
                idempotency_key=idempotency_key,
            )
        except BaseException:
            if own:
                await client.aclose()
            raise
        box._owns_client = own
        return box

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *_: Any) -> None:
        try:
            if self._made:
                await self.remove(force=True)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Lets go of a client that is this sandbox's own; the sandbox stays."""
        if self._owns_client:
            await self.client.aclose()

    def _call(self, method: str, *parts: str, **more: Any) -> Call:
        return Call(method, _calls.sandbox_path(self.name, *parts), **more)

    async def inspect(self) -> SandboxInfo:
        """The sandbox as it is now."""
        return await self._wire.value(self._call("GET"), SandboxInfo)

    # --- commands

    async def exec(
        self,
        *args: str,
        env: Optional[Mapping[str, str]] = None,
        workdir: Optional[str] = None,
        user: Optional[str] = None,
        stdin: Union[str, bytes, None] = None,
        timeout: Optional[Duration] = None,
        check: bool = False,
        max_output: Optional[Size] = None,
        idempotency_key: Optional[str] = None,
    ) -> ExecResult:
        """Runs a command to its end: ``exec("sh", "-c", "make && ./test")``.

        How it ended is in the result; with ``check`` an exit code other than 0 is
        a :class:`CommandFailedError`. ``timeout`` ends it then, with exit code
        124; without one it may take for ever. Of each stream ``max_output`` bytes
        are kept (16 MiB); :meth:`exec_stream` has no such bound.
        """
        request = _calls.command_request(
            args,
            env=env,
            workdir=workdir,
            user=user,
            timeout=timeout,
            max_output_bytes=_calls.size(max_output, "max_output"),
            **_calls.stdin(stdin),
        )
        call = self._call("POST", "exec", json=request, headers=_calls.key(idempotency_key), slow=True)
        result = exec_result(await self._wire.json(call))
        if check and not result.ok:
            raise CommandFailedError(list(args), result)
        return result

    def exec_stream(
        self,
        *args: str,
        env: Optional[Mapping[str, str]] = None,
        workdir: Optional[str] = None,
        user: Optional[str] = None,
        stdin: Input = None,
        tty: bool = False,
        rows: Optional[int] = None,
        cols: Optional[int] = None,
        timeout: Optional[Duration] = None,
    ) -> AsyncExecStream:
        """Runs a command and gives its output as it comes.

        Use it with ``with``: leaving that before the command's end ends the
        command and all it started. ``stdin`` is text, bytes, a file or pieces of
        bytes that are sent beside the reading; True: :meth:`AsyncExecStream.write`
        will be called. ``tty`` gives it a terminal of ``rows`` and ``cols``; then
        all output is stdout.
        """
        request = _calls.command_request(
            args,
            env=env,
            workdir=workdir,
            user=user,
            timeout=timeout,
            stdin=True if stdin is not None and stdin is not False else None,
            tty=tty or None,
            rows=rows,
            cols=cols,
        )
        return AsyncExecStream(self._wire, _calls.sandbox_path(self.name, "exec"), request, stdin)

    # --- history

    async def commit(
        self,
        message: str = "",
        *,
        author: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        disk_only: bool = False,
        idempotency_key: Optional[str] = None,
    ) -> Commit:
        """Keeps the sandbox as it is now; it goes on running."""
        request = _calls.body(
            message=message or None,
            author=author,
            labels=_calls.label_map(labels),
            disk_only=disk_only or None,
        )
        call = self._call("POST", "commits", json=request, headers=_calls.key(idempotency_key), slow=True)
        return await self._wire.value(call, Commit)

    async def checkout(
        self,
        ref: str,
        *,
        new_branch: Optional[str] = None,
        save: bool = True,
        idempotency_key: Optional[str] = None,
    ) -> SandboxInfo:
        """Puts the sandbox back to a commit, in place: same name, address and
        ports. What it was is committed first and stays reachable as ``NAME@{1}``,
        unless ``save`` is False."""
        request = _calls.body(ref=ref, new_branch=new_branch, no_save=None if save else True)
        call = self._call("POST", "checkout", json=request, headers=_calls.key(idempotency_key), slow=True)
        return await self._wire.value(call, SandboxInfo)

    async def fork(
        self,
        n: int = 1,
        *,
        prefix: Optional[str] = None,
        branch: bool = False,
        labels: Optional[Mapping[str, str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> List[AsyncSandbox]:
        """Makes ``n`` live copies of its present state; see :meth:`AsyncClient.fork`."""
        return await self.client.fork(
            self.name, n, prefix=prefix, branch=branch, labels=labels, idempotency_key=idempotency_key
        )

    def fork_stream(
        self,
        n: int = 1,
        *,
        prefix: Optional[str] = None,
        branch: bool = False,
        labels: Optional[Mapping[str, str]] = None,
        idempotency_key: Optional[str] = None,
    ) -> AsyncIterator[AsyncSandbox]:
        """:meth:`fork`, which gives each copy as soon as it is ready."""
        return self.client.fork_stream(
            self.name, n, prefix=prefix, branch=branch, labels=labels, idempotency_key=idempotency_key
        )

    async def log(self, *, n: Optional[int] = None) -> List[Commit]:
        """The history behind its HEAD, newest first."""
        return await self.client.log(self.name, n=n)

    async def reflog(self) -> List[ReflogEntry]:
        """Where its HEAD has been, the present first."""
        return await self._wire.value(self._call("GET", "reflog"), List[ReflogEntry])

    async def branch(self, name: str) -> Ref:
        """Makes a branch at its HEAD; ``checkout(ref, new_branch=…)`` also moves
        onto it."""
        return await self.client.branches.create(name, self.name)

    async def tag(self, name: str) -> Ref:
        """Makes a tag at its HEAD."""
        return await self.client.tags.create(name, self.name)

    # --- what it uses

    async def stats(self) -> Stats:
        """What it uses at this moment."""
        return await self._wire.value(self._call("GET", "stats"), Stats)

    async def resize(self, *, cpus: Optional[float] = None, memory: Optional[Size] = None) -> SandboxInfo:
        """Changes what it may use, at most what it was made with, while it runs.
        ``WrongStateError`` when the guest has too little memory to spare."""
        request = _calls.body(cpus=cpus, memory_bytes=_calls.size(memory, "memory"))
        return await self._wire.value(self._call("POST", "resize", json=request, slow=True), SandboxInfo)

    async def reclaim(self) -> ReclaimReport:
        """Gives the memory that the guest has free back to the host."""
        return await self._wire.value(self._call("POST", "reclaim", slow=True), ReclaimReport)

    # --- life

    async def pause(self) -> None:
        """Lets it stand still. Idempotent, as are the next three."""
        await self._wire.send(self._call("POST", "pause", slow=True))

    async def resume(self) -> None:
        """Lets it go on."""
        await self._wire.send(self._call("POST", "resume", slow=True))

    async def stop(self, *, timeout: Optional[Duration] = None) -> None:
        """Shuts it down; its disk stays. After ``timeout`` (10 s) it is ended
        without being asked."""
        query = _calls.query(timeout_ms=_calls.millis(timeout, "timeout"))
        await self._wire.send(self._call("POST", "stop", query=query, slow=True))

    async def start(self) -> SandboxInfo:
        """Boots it on its disk."""
        info = await self._wire.value(self._call("POST", "start", slow=True), SandboxInfo)
        self.ready_ms = info.timing.ready_ms if info.timing else self.ready_ms
        return info

    async def remove(self, *, force: bool = False) -> None:
        """Removes it; ``force``: also when it runs or is damaged."""
        await self._wire.send(self._call("DELETE", query=_calls.query(force=force), slow=True))
        self._made = False

    # --- output

    async def logs(self, *, source: str = "all", tail: Optional[int] = None) -> bytes:
        """What console and main process have printed; ``source``: all, console or
        main; ``tail``: the last lines only."""
        query = _calls.query(source=source, tail=tail)
        return (await self._wire.send(self._call("GET", "logs", query=query))).content

    def logs_stream(self, *, source: str = "all", tail: Optional[int] = None) -> AsyncStream[bytes]:
        """:meth:`logs`, and what comes until the sandbox ends."""
        query = _calls.query(source=source, tail=tail, follow=True)
        return AsyncStream(self._wire, self._call("GET", "logs", query=query, slow=True), read_bytes)
