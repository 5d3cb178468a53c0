# Made of _async/exec.py by tools/unasync.py; change that, and run it.
"""A command whose output comes as it is written."""

from __future__ import annotations

from typing import Any, BinaryIO, Dict, Iterable, Iterator, Optional, Union, cast

from .. import _blocking, _frames, _tar
from .._calls import Signal
from ..errors import ConnectionFailedError, SietchError
from ..models import Chunk, ExitStatus
from .wire import Wire

#: What a command may read: see ``exec_stream``.
Input = Union[str, bytes, bool, BinaryIO, Iterable[bytes], None]


class ExecStream:
    """A running command: iterate for its output, then :attr:`exit_status` is set::

        with box.exec_stream("make") as run:
            for chunk in run:
                print(chunk.stream, chunk.text)
        print(run.exit_status.exit_code)

    A reader that is slow slows the command. One may read while another writes.
    """

    def __init__(self, wire: Wire, path: str, request: Dict[str, Any], stdin: Input) -> None:
        self._wire = wire
        self._path = path
        self._request = request
        self._stdin = stdin
        self._socket: Optional[_blocking.WebSocket] = None
        self._pump: Optional[_blocking.Pump] = None
        self._input_error: Optional[Exception] = None
        #: How it ended; None while it runs.
        self.exit_status: Optional[ExitStatus] = None

    def __enter__(self) -> ExecStream:
        self._socket = self._wire.websocket(self._path, _frames.PROTOCOL)
        try:
            self._socket.send(_frames.start(self._request))
        except BaseException:
            self.close()
            raise
        if self._stdin is not None and not isinstance(self._stdin, bool):
            self._pump = _blocking.Pump(self._feed)
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the command, if it has not ended. Idempotent."""
        sock, self._socket = self._socket, None
        pump, self._pump = self._pump, None
        if sock is not None:
            sock.close()
        if pump is not None:
            pump.stop()

    def __iter__(self) -> ExecStream:
        return self

    def __next__(self) -> Chunk:
        while self.exit_status is None:
            said = _frames.read(self._receive())
            if isinstance(said, Chunk):
                return said
            if isinstance(said, ExitStatus):
                self.exit_status = said
            elif isinstance(said, SietchError):
                raise said
        raise StopIteration

    def _receive(self) -> Union[str, bytes]:
        try:
            return self._open().receive()
        except ConnectionFailedError:
            if self._input_error is not None:
                raise self._input_error from None
            raise

    def wait(self) -> ExitStatus:
        """Reads what still comes, drops it, and says how the command ended."""
        for _ in self:
            pass
        return cast(ExitStatus, self.exit_status)

    def write(self, data: Union[str, bytes]) -> None:
        """Sends input; waits for a command that is slow to read."""
        for message in _frames.stdin(data):
            self._open().send(message)

    def close_stdin(self) -> None:
        """There is no more input. Idempotent."""
        self._open().send(_frames.text("stdin_end"))

    def resize(self, rows: int, cols: int) -> None:
        """The terminal has another size."""
        self._open().send(_frames.resize(rows, cols))

    def signal(self, signal: Signal) -> None:
        """Sends a signal by its name or number."""
        self._open().send(_frames.signal(signal))

    def _open(self) -> _blocking.WebSocket:
        if self._socket is None:
            raise _NotOpenError("use exec_stream in a with statement, and the stream inside of it")
        return self._socket

    def _feed(self) -> None:
        try:
            for data in _blocking.each(_pieces(self._stdin)):
                self.write(data)
            self.close_stdin()
        except (ConnectionFailedError, _NotOpenError):
            pass  # the command has ended, or nobody wants it any more
        except Exception as error:
            # Where the input came from failed: the command gets no more, so it
            # is ended, and who reads is told why.
            self._input_error = error
            if self._socket is not None:
                self._socket.close()


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
