"""Branches and tags."""

from __future__ import annotations

from typing import List

from .. import _calls
from .._calls import Call
from ..models import Ref
from .wire import AsyncWire


class _AsyncRefs:
    def __init__(self, wire: AsyncWire, kind: str) -> None:
        self._wire = wire
        self._kind = kind

    async def list(self) -> List[Ref]:
        """All, by name."""
        return await self._wire.value(Call("GET", _calls.path(self._kind)), List[Ref])

    async def create(self, name: str, ref: str) -> Ref:
        """Makes one at the commit that ``ref`` names."""
        call = Call("POST", _calls.path(self._kind), json={"name": name, "ref": ref})
        return await self._wire.value(call, Ref)

    async def delete(self, name: str) -> None:
        """Deletes one; its commits stay until gc."""
        await self._wire.send(Call("DELETE", _calls.path(self._kind, name)))


class AsyncBranches(_AsyncRefs):
    """Names that move with the sandbox that has them checked out."""

    def __init__(self, wire: AsyncWire) -> None:
        super().__init__(wire, "branches")

    async def rename(self, name: str, to: str) -> None:
        await self._wire.send(Call("PATCH", _calls.path(self._kind, name), json={"name": to}))


class AsyncTags(_AsyncRefs):
    """Names that stay."""

    def __init__(self, wire: AsyncWire) -> None:
        super().__init__(wire, "tags")
