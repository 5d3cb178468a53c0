"""Commands in the background of a sandbox."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

from .. import _calls
from .._calls import Call, Duration, Signal
from ..errors import ProtocolError
from ..models import ProcessInfo, ProcessOutput
from .wire import AsyncStream, AsyncWire, read_bytes


class AsyncProcesses:
    """The background processes of a sandbox. They go on when the caller or the
    server leaves, and are part of commits and forks."""

    def __init__(self, wire: AsyncWire, name: str) -> None:
        self._wire = wire
        self._name = name

    async def start(
        self,
        *args: str,
        env: Optional[Mapping[str, str]] = None,
        workdir: Optional[str] = None,
        user: Optional[str] = None,
        timeout: Optional[Duration] = None,
        idempotency_key: Optional[str] = None,
    ) -> AsyncProcess:
        """Starts a command; ``timeout`` ends it then."""
        request = _calls.command_request(args, env=env, workdir=workdir, user=user, timeout=timeout)
        call = Call(
            "POST",
            _calls.sandbox_path(self._name, "processes"),
            json=request,
            headers=_calls.key(idempotency_key),
        )
        return self._handle(await self._wire.value(call, ProcessInfo))

    async def list(self) -> List[AsyncProcess]:
        """All that are known, oldest first."""
        call = Call("GET", _calls.sandbox_path(self._name, "processes"))
        return [self._handle(p) for p in await self._wire.value(call, List[ProcessInfo])]

    async def get(self, id: str) -> AsyncProcess:
        """The one with this id: also after a checkout, or in a fork."""
        call = Call("GET", _calls.sandbox_path(self._name, "processes", id))
        return self._handle(await self._wire.value(call, ProcessInfo))

    def _handle(self, info: ProcessInfo) -> AsyncProcess:
        return AsyncProcess(self._wire, self._name, info)


class AsyncProcess:
    """One background process. ``info`` is how it was when it was last asked for."""

    def __init__(self, wire: AsyncWire, name: str, info: ProcessInfo) -> None:
        self._wire = wire
        self._name = name
        self.info = info

    @property
    def id(self) -> str:
        return self.info.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._name}>"

    def _call(self, method: str, *parts: str, **more: Any) -> Call:
        return Call(method, _calls.sandbox_path(self._name, "processes", self.id, *parts), **more)

    async def inspect(self) -> ProcessInfo:
        """The process as it is now."""
        self.info = await self._wire.value(self._call("GET"), ProcessInfo)
        return self.info

    async def wait(self, timeout: Optional[Duration] = None) -> ProcessInfo:
        """Waits until it has ended, or for ``timeout``: then it is still
        ``running``, and goes on."""
        query = _calls.query(timeout_ms=_calls.millis(timeout, "timeout"))
        self.info = await self._wire.value(self._call("GET", "wait", query=query, slow=True), ProcessInfo)
        return self.info

    async def output(self, offset: int = 0, *, limit: Optional[int] = None) -> ProcessOutput:
        """What it has written, stdout and stderr in their order, from ``offset``:
        at most ``limit`` bytes, and 1 MiB. Of an offset that is no longer kept,
        the oldest that is."""
        query = _calls.query(offset=offset or None, limit=limit)
        response = await self._wire.send(self._call("GET", "output", query=query))
        try:
            return ProcessOutput(response.content, int(response.headers["Sietch-Next-Offset"]))
        except (KeyError, ValueError):
            raise ProtocolError("the answer does not say where the output goes on") from None

    def follow(self, offset: int = 0) -> AsyncStream[bytes]:
        """What it has written from ``offset``, and what comes until it ends."""
        query = _calls.query(offset=offset or None, follow=True)
        return AsyncStream(self._wire, self._call("GET", "output", query=query, slow=True), read_bytes)

    async def signal(self, signal: Signal) -> None:
        """Sends a signal, by name or number, to it and its group."""
        await self._wire.send(self._call("POST", "signal", json={"signal": str(_plain(signal))}))

    async def kill(self) -> None:
        """Ends it without asking."""
        await self.signal("KILL")

    async def remove(self) -> None:
        """Forgets it and its output; it must have ended."""
        await self._wire.send(self._call("DELETE"))


def _plain(signal: Signal) -> Signal:
    return signal if isinstance(signal, str) else int(signal)
