# Made of _async/refs.py by tools/unasync.py; change that, and run it.
"""Branches and tags."""

from __future__ import annotations

from typing import List

from .. import _calls
from .._calls import Call
from ..models import Ref
from .wire import Wire


class _AsyncRefs:
    def __init__(self, wire: Wire, kind: str) -> None:
        self._wire = wire
        self._kind = kind

    def list(self) -> List[Ref]:
        """All, by name."""
        return self._wire.value(Call("GET", _calls.path(self._kind)), List[Ref])

    def create(self, name: str, ref: str) -> Ref:
        """Makes one at the commit that ``ref`` names."""
        call = Call("POST", _calls.path(self._kind), json={"name": name, "ref": ref})
        return self._wire.value(call, Ref)

    def delete(self, name: str) -> None:
        """Deletes one; its commits stay until gc."""
        self._wire.send(Call("DELETE", _calls.path(self._kind, name)))


class Branches(_AsyncRefs):
    """Names that move with the sandbox that has them checked out."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire, "branches")

    def rename(self, name: str, to: str) -> None:
        self._wire.send(Call("PATCH", _calls.path(self._kind, name), json={"name": to}))


class Tags(_AsyncRefs):
    """Names that stay."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire, "tags")
