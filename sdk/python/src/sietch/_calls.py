"""What the API is asked: the parts that sync and async clients share.

Nothing here does I/O.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from typing import Any, AsyncIterable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote

from .errors import UsageError

#: Sizes: bytes, or as on the command line, such as "512M" or "1.5G".
Size = Union[int, str]
#: Durations: seconds, or a timedelta.
Duration = Union[int, float, timedelta]
#: A port to forward: of the guest (the host's is chosen), or as on the command
#: line "[IP:]HOST:GUEST[/udp]".
PortSpec = Union[int, str]
#: A signal: its name or number.
Signal = Union[str, int]

Body = Union[bytes, Iterable[bytes], AsyncIterable[bytes]]


@dataclass(frozen=True)
class Call:
    """One request. Paths are percent-encoded already; see :func:`path`."""

    method: str
    path: str
    query: List[Tuple[str, str]] = field(default_factory=list)
    headers: Dict[str, str] = field(default_factory=dict)
    json: Optional[Dict[str, Any]] = None
    content: Optional[Body] = None
    #: The answer may take as long as it takes.
    slow: bool = False
    #: Statuses besides those of success that are answers.
    accept: Tuple[int, ...] = ()

    @property
    def repeatable(self) -> bool:
        """Its body can be sent a second time."""
        return self.content is None or isinstance(self.content, bytes)


NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")


def sandbox_path(name: str, *parts: str) -> str:
    """``/v1/sandboxes/NAME/…``; a name that can be none is refused here, so that
    it cannot become another path."""
    if not NAME.match(name):
        raise UsageError(
            f"{name!r:.80} is not the name of a sandbox", "names match [a-z0-9][a-z0-9._-]{0,62}"
        )
    return path("sandboxes", name, *parts)


def path(*parts: str) -> str:
    """``/v1/…`` of these segments."""
    return "/v1/" + "/".join(_segment(p) for p in parts)


def _segment(text: str) -> str:
    if text in ("", ".", ".."):
        raise UsageError(f"{text!r} names nothing")
    return quote(text, safe="")


def query(**values: Any) -> List[Tuple[str, str]]:
    """Query parameters; what is None, False or an empty list is left out."""
    pairs: List[Tuple[str, str]] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            pairs.append((name, "true" if one is True else str(one)))
    return pairs


def body(**values: Any) -> Dict[str, Any]:
    """A JSON object; what is None is left out."""
    return {k: v for k, v in values.items() if v is not None}


def key(idempotency_key: Optional[str]) -> Dict[str, str]:
    return {"Idempotency-Key": idempotency_key} if idempotency_key else {}


def millis(duration: Optional[Duration], name: str) -> Optional[int]:
    """Milliseconds, at least one: zero means something else to the API."""
    if duration is None:
        return None
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{name} of {duration!r} is not a duration above zero", "leave it out for none")
    return max(1, round(seconds * 1000))


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:([kmgtp])(?:i?b)?|b)?\Z", re.IGNORECASE)


def size(value: Optional[Size], name: str) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, str):
        m = _SIZE.match(value)
        if not m:
            raise UsageError(f"{name} {value!r} is not a size", "such as 512M or 1.5G")
        power = "kmgtp".index(m[2].lower()) + 1 if m[2] else 0
        value = int(Fraction(m[1]) * 1024**power)
    if value <= 0:
        raise UsageError(f"{name} must be above zero", "leave it out for the default")
    return value


def pairs(values: Optional[Mapping[str, str]], name: str) -> Optional[List[str]]:
    """``K=V`` of each."""
    if values is None:
        return None
    for k in values:
        if not k or "=" in k or "\0" in k:
            raise UsageError(f"{name}: {k!r} is not a name")
    return [f"{k}={v}" for k, v in values.items()]


def arguments(args: Sequence[str]) -> List[str]:
    """The words of a command."""
    if not args:
        raise UsageError("there is no command", 'such as exec("uname", "-a")')
    for a in args:
        if not isinstance(a, str):
            raise UsageError(
                f"a command is words, and {a!r:.80} is none", "give each word as an argument: exec(*words)"
            )
    return list(args)


_PORT = re.compile(
    r"(?:(?:(?P<ip>[0-9.]+):)?(?P<host>\d{0,5}):)?(?P<guest>\d{1,5})(?:/(?P<proto>tcp|udp))?\Z"
)


def port(spec: PortSpec) -> Dict[str, Any]:
    """A ``PortRequest``."""
    m = _PORT.match(str(spec))
    numbers = [int(n) for n in (m["host"] or "0", m["guest"])] if m else [0, 0]
    if not m or not 0 <= numbers[0] < 65536 or not 0 < numbers[1] < 65536:
        raise UsageError(f"{spec!r} is not a port", "write GUEST or [IP:]HOST:GUEST, such as 8080:80")
    return body(host_ip=m["ip"], host=numbers[0] or None, guest=numbers[1], protocol=m["proto"])


def stdin(data: Union[str, bytes, None]) -> Dict[str, str]:
    """The fields of an ``ExecRequest`` for its input."""
    if not data:
        return {}
    if isinstance(data, str):
        return {"stdin": data}
    return {"stdin_base64": base64.b64encode(data).decode("ascii")}


def secrets(values: Optional[Mapping[str, Union[str, bytes]]]) -> Dict[str, str]:
    """The header that carries the secrets of a build."""
    if not values:
        return {}
    table = {
        k: base64.b64encode(v.encode() if isinstance(v, str) else v).decode("ascii")
        for k, v in values.items()
    }
    return {"Sietch-Build-Secrets": base64.b64encode(json.dumps(table).encode()).decode("ascii")}


def octal(mode: Optional[int]) -> Optional[str]:
    """Permissions as the API wants them."""
    if mode is None:
        return None
    if not 0 <= mode <= 0o7777:
        raise UsageError(f"{mode!r} is no mode", "such as 0o644")
    return f"{mode:03o}"


def guest_path(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise UsageError(f"{text!r:.200} is not an absolute path of the guest")
    return text


def label_map(labels: Optional[Mapping[str, str]]) -> Optional[Dict[str, str]]:
    return None if labels is None else dict(labels)


def run_request(
    from_: str,
    *,
    name: Optional[str],
    cpus: Optional[int],
    memory: Optional[Size],
    disk: Optional[Size],
    ports: Sequence[PortSpec],
    env: Optional[Mapping[str, str]],
    workdir: Optional[str],
    user: Optional[str],
    network: Optional[str],
    labels: Optional[Mapping[str, str]],
    message: Optional[str],
    args: Optional[Sequence[str]],
    from_disk: bool,
    nested: bool,
    ttl: Optional[Duration],
) -> Dict[str, Any]:
    """A ``RunRequest``."""
    if name is not None:
        sandbox_path(name)
    return body(
        **{"from": from_},
        name=name,
        cpus=cpus,
        memory_bytes=size(memory, "memory"),
        disk_bytes=size(disk, "disk"),
        ports=[port(p) for p in ports] or None,
        env=pairs(env, "env"),
        workdir=workdir,
        user=user,
        network=network,
        labels=label_map(labels),
        message=message,
        args=arguments(args) if args else None,
        from_disk=from_disk or None,
        nested=nested or None,
        ttl_ms=millis(ttl, "ttl"),
    )


def command_request(
    args: Sequence[str],
    *,
    env: Optional[Mapping[str, str]],
    workdir: Optional[str],
    user: Optional[str],
    timeout: Optional[Duration],
    **more: Any,
) -> Dict[str, Any]:
    """What ``ExecRequest``, ``ExecStart`` and ``ProcessRequest`` share, and more."""
    return body(
        args=arguments(args),
        env=pairs(env, "env"),
        workdir=workdir,
        user=user,
        timeout_ms=millis(timeout, "timeout"),
        **more,
    )
