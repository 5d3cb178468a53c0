"""From JSON to the classes of :mod:`sietch.models`."""

from __future__ import annotations

import base64
import dataclasses
import functools
import re
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, Type, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from . import models
from .errors import ProtocolError

T = TypeVar("T")

_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([Zz])|([+-])(\d\d):(\d\d))$")


def decode(cls: Type[T], data: Any) -> T:
    """Reads ``data`` as ``cls``: a dataclass, ``List[...]`` of one, or a plain type."""
    return cast(T, _value(cls, data, ""))


def exec_result(data: Any) -> models.ExecResult:
    """An ``ExecResult``, with its exact bytes."""
    plain = decode(models.ExecResult, data)
    return dataclasses.replace(
        plain, stdout_bytes=_exact(data, "stdout"), stderr_bytes=_exact(data, "stderr")
    )


def _exact(data: Dict[str, Any], name: str) -> bytes:
    encoded = data.get(name + "_base64")
    return base64.b64decode(encoded) if encoded else str(data[name]).encode()


def _value(kind: Any, data: Any, at: str) -> Any:
    origin = get_origin(kind)
    if origin is Union:  # Optional
        if data is None:
            return None
        return _value(next(a for a in get_args(kind) if a is not type(None)), data, at)
    if origin is list:
        # A list that is empty may come as null from what is no Go.
        items = _expect(data if data is not None else [], list, at)
        return [_value(get_args(kind)[0], v, f"{at}[{i}]") for i, v in enumerate(items)]
    if origin is dict:
        table = _expect(data if data is not None else {}, dict, at)
        return {str(k): _value(get_args(kind)[1], v, f"{at}.{k}") for k, v in table.items()}
    if dataclasses.is_dataclass(kind):
        return _object(cast(type, kind), _expect(data, dict, at), at)
    if kind is datetime:
        return _time(_expect(data, str, at), at)
    if kind is float:
        return float(_expect(data, (int, float), at))
    if kind is int and isinstance(data, bool):
        _expect(None, int, at)
    return _expect(data, kind, at)


def _object(kind: type, data: Dict[str, Any], at: str) -> Any:
    found = {}
    for name, (hint, required) in _fields(kind).items():
        if name in data:
            found[name] = _value(hint, data[name], f"{at}.{name}")
        elif required:
            raise ProtocolError(f"the answer lacks {at}.{name} of {kind.__name__}")
    return kind(**found)


@functools.cache
def _fields(kind: type) -> Dict[str, Any]:
    hints = get_type_hints(kind)
    missing = dataclasses.MISSING
    return {
        f.name: (hints[f.name], f.default is missing and f.default_factory is missing)
        for f in dataclasses.fields(cast(Any, kind))
    }


def _expect(data: Any, kind: Any, at: str) -> Any:
    if kind is Any or isinstance(data, kind):
        return data
    raise ProtocolError(f"the answer has {type(data).__name__} at {at or 'its top'}, not {kind}")


def _time(text: str, at: str) -> datetime:
    """RFC 3339, with any number of digits; what microseconds cannot say is cut."""
    m = _TIME.match(text)
    if not m:
        raise ProtocolError(f"the answer has {text!r} at {at}, which is no time")
    offset = timedelta(0)
    if m[4]:
        offset = timedelta(hours=int(m[5]), minutes=int(m[6])) * (-1 if m[4] == "-" else 1)
    micros = int((m[2] or "")[:6].ljust(6, "0"))
    plain = datetime.fromisoformat(m[1].upper()).replace(microsecond=micros)
    return (plain - offset).replace(tzinfo=timezone.utc)
