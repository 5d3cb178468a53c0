"""Where the server is."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from typing import List, Optional, Tuple, Union
from urllib.parse import urlsplit

from .errors import UsageError

DEFAULT_URL = "http://127.0.0.1:7000"
DATA_DIR = "/var/lib/sietch"
SOCKET = "serve.sock"

#: What httpx takes for ``verify``, and a path of certificates to trust.
Verify = Union[bool, str, ssl.SSLContext]

#: A connection over which nothing comes for long, as while a command is silent,
#: is asked by the kernel whether the other side is still there.
KEEPALIVE: List[Tuple[int, int, int]] = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]


@dataclass(frozen=True)
class Address:
    """A server: a base URL, and the unix socket that it is reached by, if any."""

    url: str
    uds: Optional[str] = None

    @property
    def websocket_url(self) -> str:
        return "ws" + self.url[len("http") :]

    @property
    def secure(self) -> bool:
        return self.url.startswith("https:")


def parse(url: str) -> Address:
    """Reads ``http://HOST:PORT``, ``https://…``, or ``unix:///PATH``."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/"):
            raise UsageError(f"{url!r} names no socket", "write unix:///path/of/serve.sock")
        return Address("http://localhost", parts.path)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not the address of a server", f"such as {DEFAULT_URL}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("the address of a server is scheme, host, port and path", "a token goes into token")
    return Address(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")


def find(url: Optional[str]) -> Address:
    """The server that is meant: by name, by SIETCH_URL, or the one of this machine:
    by the socket in the data directory where there is one, else on port 7000."""
    url = url or os.environ.get("SIETCH_URL")
    if url:
        return parse(url)
    path = os.path.join(os.environ.get("SIETCH_DATA_DIR") or DATA_DIR, SOCKET)
    if os.access(path, os.R_OK | os.W_OK):
        return Address("http://localhost", os.path.abspath(path))
    return parse(DEFAULT_URL)


def find_token(token: Optional[str]) -> Optional[str]:
    return token or os.environ.get("SIETCH_TOKEN") or None


def open_socket(address: Address, timeout: float) -> socket.socket:
    """Connects; the caller closes. Blocks for as long as ``timeout``."""
    if address.uds is not None:
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            conn.settimeout(timeout)
            conn.connect(address.uds)
        except BaseException:
            conn.close()
            raise
        return conn
    parts = urlsplit(address.url)
    conn = socket.create_connection(
        (parts.hostname or "", parts.port or (443 if address.secure else 80)), timeout
    )
    for option in KEEPALIVE:
        conn.setsockopt(*option)
    return conn


def tls(verify: Verify) -> ssl.SSLContext:
    """The one context for HTTP and WebSocket."""
    if isinstance(verify, ssl.SSLContext):
        return verify
    if isinstance(verify, str):
        if os.path.isdir(verify):
            return ssl.create_default_context(capath=verify)
        return ssl.create_default_context(cafile=verify)
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
