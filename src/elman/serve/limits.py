"""Every limit of the server, in one table. They are checked where a request is parsed, before anything is done."""

from __future__ import annotations

from dataclasses import dataclass, fields

MEANING = {
    "body": "bytes in a request",
    "headers": "bytes before the body of a request; as many again around and after its chunks",
    "receive_seconds": "seconds for a request to arrive, and until the next one on a connection without a valid key",
    "send_seconds": "seconds for a client to read the next 256 KiB of an answer",
    "prompt": "tokens in a prompt",
    "token_characters": "characters of a text for each token that may be read; a longer one is not split to be counted",
    "prompts": "prompts in a request for completions",
    "max_tokens": "tokens to write",
    "n": "completions of one prompt",
    "beams": "sequences that a beam search keeps",
    "total_tokens": "tokens to write in one request: prompts x n (or num_beams) x max_tokens",
    "bias": "tokens in a logit_bias",
    "stops": "strings that end a text",
    "stop_characters": "characters in each of them",
    "logprobs": "alternative tokens whose log-probabilities are returned with that of the chosen one",
    "scores": "log-probabilities in one answer: tokens x (1 + logprobs), those of the prompts with echo",
    "inputs": "inputs in one step",
    "filled": "rows of a forecaster's series that are missing and filled in",
    "drawn": "numbers of a forecast: series x (samples + quantiles) x steps x targets",
    "batch": "rows that a prediction computes side by side",
    "ratio": "symbols of a translation for each of its source",
    "prediction": "bytes in the lines that /v1/predict answers",
    "bulk": "sessions in one request to /v1/steps",
    "bulk_inputs": "inputs in one request to /v1/steps, or under way on one socket",
    "state_bytes": "bytes in a state that is sent by PUT /v1/sessions/ID/state, whatever `body` is",
    "sessions": "sessions and stored responses of one tenant",
    "kept_bytes": "bytes of stored responses, and of replies that are kept for their keys, of one tenant",
    "forks": "forks of one session",
    "checkpoints": "checkpoints that a session may keep",
    "session_queue": "requests that wait for one session",
    "queue": "requests that wait for the engine; each tenant that waits may have an equal part of it",
    "key": "characters in an idempotency key",
    "ttl_seconds": "seconds after which an idle session expires",
    "socket_message": "bytes in a message on a socket",
    "socket_flight": "messages of one socket that are not answered yet",
    "connections": "open at the same time",
    "keyless": "connections from one address that have not sent a valid key",
    "tenant_connections": "connections of one tenant, where there are keys",
    "tenant_sockets": "sockets of one tenant, where there are keys",
    "tenant_bytes": "bytes of one tenant's requests and answers on their way; one request alone may have more",
    "tenant_threads": "beam searches and requests to /v1/predict of one tenant that run or wait",
    "tombstones": "expired sessions that are remembered as such",
}


@dataclass(frozen=True)
class Limits:
    """`elman serve --print_limits` prints them.

    >>> Limits(n=4).n
    4
    """

    body: int = 8 << 20
    headers: int = 64 << 10
    receive_seconds: float = 10.0
    send_seconds: float = 10.0
    prompt: int = 65_536
    token_characters: int = 16
    prompts: int = 64
    max_tokens: int = 16_384
    n: int = 64
    beams: int = 64
    total_tokens: int = 262_144
    bias: int = 1_024
    stops: int = 4
    stop_characters: int = 256
    logprobs: int = 20
    scores: int = 524_288
    inputs: int = 8_192
    filled: int = 10_000
    drawn: int = 1 << 24
    batch: int = 256
    ratio: float = 16.0
    prediction: int = 32 << 20
    bulk: int = 1_024
    bulk_inputs: int = 32_768
    state_bytes: int = 16 << 20
    sessions: int = 4_000_000
    kept_bytes: int = 4 << 30
    forks: int = 1_024
    checkpoints: int = 64
    session_queue: int = 16
    queue: int = 8_192
    key: int = 255
    ttl_seconds: float = 30 * 86_400.0
    socket_message: int = 1 << 20
    socket_flight: int = 256
    connections: int = 4_096
    keyless: int = 1_024
    tenant_connections: int = 1_024
    tenant_sockets: int = 256
    tenant_bytes: int = 128 << 20
    tenant_threads: int = 8
    tombstones: int = 100_000

    def lines(self) -> list[str]:
        """A line for each: its name, how much, of what."""
        return [f"{field.name:<16} {getattr(self, field.name):>12,}  {MEANING[field.name]}" for field in fields(self)]
