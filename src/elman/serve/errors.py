"""What the server refuses: a status, and the error object that OpenAI's clients read."""

from __future__ import annotations

import secrets

from elman.serve.json import to_json

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    410: "gone_error",
    412: "precondition_failed_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "unprocessable_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    503: "overloaded_error",
    507: "storage_error",
}


class HttpError(Exception):
    """A request that is answered with an error.

    >>> HttpError(404, "there is no session x").body()
    b'{"error":{"message":"there is no session x","type":"not_found_error","param":null,"code":null}}'
    """

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None,
        headers: dict[str, str] | None = None, **more: object,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers, self.more = headers or {}, more

    def error(self) -> dict[str, object]:
        """The error object."""
        return {
            "message": self.message,
            "type": TYPES[self.status],
            "param": self.param,
            "code": self.code,
            **self.more,
        }

    def body(self, request_id: str = "") -> bytes:
        """The body of the answer; it names the request, where that has a name."""
        named = {"request_id": request_id} if request_id else {}
        return to_json({"error": {**self.error(), **named}})


class Disconnected(Exception):
    """The client is no longer there: nobody waits for an answer."""


def new_request_id() -> str:
    """A name for a request that has none. A count would tell everyone how many requests others send."""
    return f"req_{secrets.token_hex(9)}"


def busy(message: str, milliseconds: int = 100, status: int = 429, code: str = "busy") -> HttpError:
    """Come back later; when, the headers say, as OpenAI's clients read them."""
    headers = {"retry-after-ms": str(milliseconds), "retry-after": str(max(1, round(milliseconds / 1000)))}
    return HttpError(status, message, code=code, headers=headers)
