"""What can go wrong, a class for each code of the API.

Every error of the API says what thing, for which reason (``message``) and, where
there is one, the next step (``hint``)::

    try:
        box.checkout("v1")
    except sietch.NotFoundError as error:
        print(error.message, error.hint)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Type

if TYPE_CHECKING:
    from .models import ExecResult, Fork


class SietchError(Exception):
    """The base of all errors of this package.

    ``code`` is the API's, ``status`` the HTTP status (``None`` where there was
    none: a stream that had begun, or no answer at all), ``request_id`` what the
    server's log has it under.
    """

    code: str = "failed"

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        code: Optional[str] = None,
        status: Optional[int] = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status
        self.request_id = request_id
        if code is not None:
            self.code = code
        #: After ``fork``: the copies that did come up. They stay.
        self.forks: List[Fork] = []

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class APIError(SietchError):
    """The server answered with an error whose code has no class of its own."""


class UsageError(APIError):
    """The request makes no sense; nothing was done."""

    code = "usage"


class UnauthorizedError(APIError):
    """The server wants a token, or another one."""

    code = "unauthorized"


class ForbiddenError(APIError):
    """The token does not allow it."""

    code = "forbidden"


class NotFoundError(APIError):
    """No such sandbox, commit, branch, tag, image, process or path."""

    code = "not_found"


class MethodNotAllowedError(APIError):
    code = "method_not_allowed"


class BusyError(APIError):
    """Somebody else holds it, or it has moved meanwhile."""

    code = "busy"


class WrongStateError(APIError):
    """It is not in the state that this needs."""

    code = "wrong_state"


class NotRunningError(APIError):
    """The sandbox does not run."""

    code = "not_running"


class TooLargeError(APIError):
    code = "too_large"


class MediaTypeError(APIError):
    code = "media_type"


class WrongHostError(APIError):
    """A server without tokens answers only to names of its own loopback."""

    code = "wrong_host"


class KeyReusedError(APIError):
    """The idempotency key was used for another request."""

    code = "key_reused"


class InterruptedCallError(APIError):
    """The server died under the call with this idempotency key: it was done in
    whole, in part or not at all."""

    code = "interrupted"


class UpgradeRequiredError(APIError):
    code = "upgrade_required"


class RateLimitedError(APIError):
    code = "rate_limited"


class QuotaError(APIError):
    """As many sandboxes as are allowed are there."""

    code = "quota"


class CanceledError(APIError):
    code = "canceled"


class FailedError(APIError):
    """It did not work, for a reason that is no kind of its own."""

    code = "failed"


class CorruptError(APIError):
    """Something that is stored is damaged."""

    code = "corrupt"


class UnreachableError(APIError):
    """The service in the sandbox does not answer."""

    code = "unreachable"


class HostError(APIError):
    """The server's host lacks something; its ``doctor`` says what."""

    code = "host"


class ShuttingDownError(APIError):
    code = "shutting_down"


class TimedOutError(APIError):
    """It took longer than the server allows."""

    code = "timeout"


class ConnectionFailedError(SietchError):
    """No server there, or the connection broke before the answer was complete."""

    code = "connection"


class ProtocolError(SietchError):
    """The other side does not speak this API."""

    code = "protocol"


class CommandFailedError(SietchError):
    """A command that was run with ``check=True`` did not exit with 0."""

    code = "command_failed"

    def __init__(self, args: List[str], result: ExecResult) -> None:
        last = result.stderr.strip().splitlines()[-1:] or [result.error or "no word on stderr"]
        super().__init__(f"{args[0]} ended with exit code {result.exit_code}: {last[0]}")
        self.command = args
        self.result = result


def _codes() -> Dict[str, Type[APIError]]:
    return {c.code: c for c in APIError.__subclasses__()}


#: From the API's codes to classes.
BY_CODE: Dict[str, Type[APIError]] = _codes()


def error_of(body: Any, status: Optional[int] = None, request_id: str = "") -> SietchError:
    """The error that ``{"code", "message", "hint"}`` says."""
    if not isinstance(body, dict) or not isinstance(body.get("message"), str):
        return ProtocolError(f"the error {body!r:.200} is not one of this API", status=status)
    code = str(body.get("code", "failed"))
    return BY_CODE.get(code, APIError)(
        body["message"], str(body.get("hint") or ""), code=code, status=status, request_id=request_id
    )


def error_of_answer(status: int, content: bytes, request_id: str = "") -> SietchError:
    """The error that an answer says which is none of success."""
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if isinstance(document, dict) and "error" in document:
        return error_of(document["error"], status, request_id)
    text = content[:200].decode("utf-8", "replace").strip()
    return ProtocolError(
        f"HTTP status {status} with no error of this API: {text or 'empty body'}",
        "is this the address of a sietch server?",
        status=status,
        request_id=request_id,
    )
