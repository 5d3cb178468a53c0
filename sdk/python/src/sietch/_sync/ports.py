# Made of _async/ports.py by tools/unasync.py; change that, and run it.
"""Services in a sandbox."""

from __future__ import annotations

from typing import Any, List, Optional

import httpx

from .. import _calls
from .._calls import Call, PortSpec
from ..models import Port
from .wire import Wire


class Ports:
    """Forwarded ports, and the proxy to services that are not forwarded."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name

    def list(self) -> List[Port]:
        """The ports that are forwarded."""
        return self._wire.value(Call("GET", _calls.sandbox_path(self._name, "ports")), List[Port])

    def add(self, spec: PortSpec) -> Port:
        """Forwards a port: a number is the guest's, and a free one of the host is
        taken; text is ``[IP:]HOST:GUEST[/udp]``."""
        call = Call("POST", _calls.sandbox_path(self._name, "ports"), json=_calls.port(spec))
        return self._wire.value(call, Port)

    def remove(
        self, host: int, *, host_ip: Optional[str] = None, protocol: Optional[str] = None
    ) -> None:
        """Ends the forwarding of a port of the host."""
        query = _calls.query(host_ip=host_ip, protocol=protocol)
        self._wire.send(
            Call("DELETE", _calls.sandbox_path(self._name, "ports", str(host)), query=query)
        )

    def url(self, port: int, path: str = "") -> str:
        """Where a service in the sandbox answers through the server; the port
        need not be forwarded. A server that wants a token wants it there too."""
        return self._wire.address.url + self._proxy(port, path)

    def request(self, method: str, port: int, path: str = "", **options: Any) -> httpx.Response:
        """Asks a service in the sandbox through the server; ``options`` are those
        of ``httpx.request``. The answer is the service's, whatever its status; where
        nothing listens, it is the server's, with an error of the API."""
        return self._wire.proxy(method, self._proxy(port, path), **options)

    def _proxy(self, port: int, path: str) -> str:
        return _calls.sandbox_path(self._name, "proxy", str(port)) + "/" + path.lstrip("/")
