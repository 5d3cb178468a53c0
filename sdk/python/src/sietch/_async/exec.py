"""A command whose output comes as it is written."""

from __future__ import annotations

from typing import Any, BinaryIO, Dict, Iterable, Iterator, Optional, Union, cast

from .. import _aio, _frames, _tar
from .._calls import Signal
from ..errors import ConnectionFailedError, SietchError
from ..models import Chunk, ExitStatus
from .wire import AsyncWire

#: What a command may read: see ``exec_stream``.
Input = Union[str, bytes, bool, BinaryIO, Iterable[bytes], None]


class AsyncExecStream:
    """A running command: iterate for its output, then :attr:`exit_status` is set::

        with box.exec_stream("make") as run:
            for chunk in run:
                print(chunk.stream, chunk.text)
        print(run.exit_status.exit_code)

    A reader that is slow slows the command. One may read while another writes.
    """

    def __init__(self, wire: AsyncWire, path: str, request: Dict[str, Any], stdin: Input) -> None:
        self._wire = wire
        self._path = path
        self._request = request
        self._stdin = stdin
        self._socket: Optional[_aio.AsyncWebSocket] = None
        self._pump: Optional[_aio.AsyncPump] = None
        self._input_error: Optional[Exception] = None
        #: How it ended; None while it runs.
        self.exit_status: Optional[ExitStatus] = None

    async def __aenter__(self) -> AsyncExecStream:
        self._socket = await self._wire.websocket(self._path, _frames.PROTOCOL)
        try:
            await self._socket.send(_frames.start(self._request))
        except BaseException:
            await self.aclose()
            raise
        if self._stdin is not None and not isinstance(self._stdin, bool):
            self._pump = _aio.AsyncPump(self._feed)
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the command, if it has not ended. Idempotent."""
        sock, self._socket = self._socket, None
        pump, self._pump = self._pump, None
        if sock is not None:
            await sock.close()
        if pump is not None:
            await pump.stop()

    def __aiter__(self) -> AsyncExecStream:
        return self

    async def __anext__(self) -> Chunk:
        while self.exit_status is None:
            said = _frames.read(await self._receive())
            if isinstance(said, Chunk):
                return said
            if isinstance(said, ExitStatus):
                self.exit_status = said
            elif isinstance(said, SietchError):
                raise said
        raise StopAsyncIteration

    async def _receive(self) -> Union[str, bytes]:
        try:
            return await self._open().receive()
        except ConnectionFailedError:
            if self._input_error is not None:
                raise self._input_error from None
            raise

    async def wait(self) -> ExitStatus:
        """Reads what still comes, drops it, and says how the command ended."""
        async for _ in self:
            pass
        return cast(ExitStatus, self.exit_status)

    async def write(self, data: Union[str, bytes]) -> None:
        """Sends input; waits for a command that is slow to read."""
        for message in _frames.stdin(data):
            await self._open().send(message)

    async def close_stdin(self) -> None:
        """There is no more input. Idempotent."""
        await self._open().send(_frames.text("stdin_end"))

    async def resize(self, rows: int, cols: int) -> None:
        """The terminal has another size."""
        await self._open().send(_frames.resize(rows, cols))

    async def signal(self, signal: Signal) -> None:
        """Sends a signal by its name or number."""
        await self._open().send(_frames.signal(signal))

    def _open(self) -> _aio.AsyncWebSocket:
        if self._socket is None:
            raise _NotOpenError("use exec_stream in a with statement, and the stream inside of it")
        return self._socket

    async def _feed(self) -> None:
        try:
            async for data in _aio.each(_pieces(self._stdin)):
                await self.write(data)
            await self.close_stdin()
        except (ConnectionFailedError, _NotOpenError):
            pass  # the command has ended, or nobody wants it any more
        except Exception as error:
            # Where the input came from failed: the command gets no more, so it
            # is ended, and who reads is told why.
            self._input_error = error
            if self._socket is not None:
                await self._socket.close()


class _NotOpenError(RuntimeError):
    pass


def _pieces(stdin: Input) -> Iterator[bytes]:
    if isinstance(stdin, str):
        return iter([stdin.encode()])
    if isinstance(stdin, bytes):
        return iter([stdin])
    if hasattr(stdin, "read"):
        return _tar.pieces(cast(BinaryIO, stdin))
    return iter(cast(Iterable[bytes], stdin))
