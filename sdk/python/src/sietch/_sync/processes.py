# Made of _async/processes.py by tools/unasync.py; change that, and run it.
"""Commands in the background of a sandbox."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

from .. import _calls
from .._calls import Call, Duration, Signal
from ..errors import ProtocolError
from ..models import ProcessInfo, ProcessOutput
from .wire import Stream, Wire, read_bytes


class Processes:
    """The background processes of a sandbox. They go on when the caller or the
    server leaves, and are part of commits and forks."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name

    def start(
        self,
        *args: str,
        env: Optional[Mapping[str, str]] = None,
        workdir: Optional[str] = None,
        user: Optional[str] = None,
        timeout: Optional[Duration] = None,
        idempotency_key: Optional[str] = None,
    ) -> Process:
        """Starts a command; ``timeout`` ends it then."""
        request = _calls.command_request(args, env=env, workdir=workdir, user=user, timeout=timeout)
        call = Call(
            "POST",
            _calls.sandbox_path(self._name, "processes"),
            json=request,
            headers=_calls.key(idempotency_key),
        )
        return self._handle(self._wire.value(call, ProcessInfo))

    def list(self) -> List[Process]:
        """All that are known, oldest first."""
        call = Call("GET", _calls.sandbox_path(self._name, "processes"))
        return [self._handle(p) for p in self._wire.value(call, List[ProcessInfo])]

    def get(self, id: str) -> Process:
        """The one with this id: also after a checkout, or in a fork."""
        call = Call("GET", _calls.sandbox_path(self._name, "processes", id))
        return self._handle(self._wire.value(call, ProcessInfo))

    def _handle(self, info: ProcessInfo) -> Process:
        return Process(self._wire, self._name, info)


class Process:
    """One background process. ``info`` is how it was when it was last asked for."""

    def __init__(self, wire: Wire, name: str, info: ProcessInfo) -> None:
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

    def inspect(self) -> ProcessInfo:
        """The process as it is now."""
        self.info = self._wire.value(self._call("GET"), ProcessInfo)
        return self.info

    def wait(self, timeout: Optional[Duration] = None) -> ProcessInfo:
        """Waits until it has ended, or for ``timeout``: then it is still
        ``running``, and goes on."""
        query = _calls.query(timeout_ms=_calls.millis(timeout, "timeout"))
        self.info = self._wire.value(self._call("GET", "wait", query=query, slow=True), ProcessInfo)
        return self.info

    def output(self, offset: int = 0, *, limit: Optional[int] = None) -> ProcessOutput:
        """What it has written, stdout and stderr in their order, from ``offset``:
        at most ``limit`` bytes, and 1 MiB. Of an offset that is no longer kept,
        the oldest that is."""
        query = _calls.query(offset=offset or None, limit=limit)
        response = self._wire.send(self._call("GET", "output", query=query))
        try:
            return ProcessOutput(response.content, int(response.headers["Sietch-Next-Offset"]))
        except (KeyError, ValueError):
            raise ProtocolError("the answer does not say where the output goes on") from None

    def follow(self, offset: int = 0) -> Stream[bytes]:
        """What it has written from ``offset``, and what comes until it ends."""
        query = _calls.query(offset=offset or None, follow=True)
        return Stream(self._wire, self._call("GET", "output", query=query, slow=True), read_bytes)

    def signal(self, signal: Signal) -> None:
        """Sends a signal, by name or number, to it and its group."""
        self._wire.send(self._call("POST", "signal", json={"signal": str(_plain(signal))}))

    def kill(self) -> None:
        """Ends it without asking."""
        self.signal("KILL")

    def remove(self) -> None:
        """Forgets it and its output; it must have ended."""
        self._wire.send(self._call("DELETE"))


def _plain(signal: Signal) -> Signal:
    return signal if isinstance(signal, str) else int(signal)
