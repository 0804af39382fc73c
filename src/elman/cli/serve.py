"""elman serve: models with their states, over HTTP."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from elman.errors import InputError, MissingExtraError
from elman.progress import say
from elman.serve.limits import Limits

if TYPE_CHECKING:
    from elman.serve.api.app import Service
    from elman.tasks.serving import Served

LOOPBACK = ("127.0.0.1", "::1", "localhost")
TIERS = ("none", "process", "power")


def run(arguments: Sequence[str]) -> int:
    """Serve until a signal arrives; or copy a store."""
    if arguments and arguments[0] == "backup":
        return _backup(arguments[1:])
    args = parser().parse_args(arguments)
    if args.print_limits:
        print("\n".join(Limits().lines()))
        return 0
    _check(args)
    try:
        import msgspec  # noqa: F401
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
        import uvloop  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(str(error.name), "serve") from error
    from elman.serve.server import serve

    with _ignoring_hangup():
        return serve(_service(args), args.host, args.port)


@contextmanager
def _ignoring_hangup() -> Iterator[None]:
    """SIGHUP reads keys again; it must not end the process while models are loaded, or if there are no keys."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _backup(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="elman serve backup", allow_abbrev=False,
        description="Copy a store as it is between two commits; a server may run on it at the same time.",
    )  # fmt: skip
    parser.add_argument("store", metavar="STORE", help="the file of a server's --store")
    parser.add_argument("to", metavar="TO", help="the copy: a file that does not exist yet")
    args = parser.parse_args(arguments)
    from elman.serve.store.sqlite import backup

    backup(args.store, args.to)
    say(f"elman serve: {args.to} is a copy of {args.store}")
    return 0


def _check(args: argparse.Namespace) -> None:
    if not args.model and not args.run:
        raise InputError("there is no model to serve: elman serve RUN, or --model NAME=RUN for each of several")
    if args.host not in LOOPBACK and not args.api_key_file and not args.insecure:
        raise InputError(
            f"--host is {args.host}, which others can reach, and there are no keys. Pass --api_key_file, or "
            "--insecure if anyone may use every session"
        )
    if args.durability == "none" and args.store:
        raise InputError("--store keeps sessions in a file; its --durability must be process or power, not none")
    if args.durability in ("process", "power") and not args.store:
        raise InputError(f"--durability {args.durability} needs --store FILE to keep sessions in")
    if not 0 < args.ttl <= Limits.ttl_seconds:
        raise InputError(f"--ttl is {args.ttl}; it must be above 0 and at most {Limits.ttl_seconds:g} seconds")
    if not 0 <= args.drain_delay <= 3_600:
        raise InputError(f"--drain_delay is {args.drain_delay}; it must be from 0 to 3600 seconds")
    if not 0 <= args.port < 65536:
        raise InputError(f"--port is {args.port}; it must be from 0, for any free port, to 65535")


def _service(args: argparse.Namespace) -> Service:
    from elman.kernels.builder import WEIGHTS
    from elman.options import choice
    from elman.serve.api.app import Service
    from elman.serve.api.predicting import predictor
    from elman.serve.net.keys import Keys, readable_by_others
    from elman.serve.store.sessions import Sessions
    from elman.serve.store.signing import Signer
    from elman.serve.store.sqlite import SqliteStore
    from elman.serve.store.store import MemoryStore
    from elman.tasks import open_model

    if args.weights is not None:
        choice("--weights", args.weights, WEIGHTS)
    models, predictors = {}, {}
    for name, path in _named(args):
        task, model = open_model(path)
        if "predict" in task.requests:
            predictors[name] = predictor(task, model)
        try:
            models[name] = task.serve(model)
        except InputError as error:
            if name not in predictors:
                raise
            say(f"elman serve: {name} is served by /v1/predict only: {error}")
    if args.weights is not None:
        models = _with_weights(models, predictors, args.weights)
    for secret in filter(None, (args.api_key_file, args.state_key_file, args.store)):
        if warning := readable_by_others(secret):
            say(f"elman serve: warning: {warning}")
    keys = Keys(args.api_key_file) if args.api_key_file else None
    store = SqliteStore(args.store) if args.store else MemoryStore()
    sessions = Sessions(store, models, Limits())
    for name in sessions.orphans():
        say(f"elman serve: warning: the store has sessions of {name}, which is not loaded; requests to them get 422")
    signer = Signer.of_file(args.state_key_file) if args.state_key_file else Signer.of_store(store)
    durability = args.durability or ("process" if args.store else "none")
    return Service(
        sessions,
        signer,
        keys=keys,
        durability=durability,
        ttl=args.ttl,
        insecure=args.insecure,
        drain_delay=args.drain_delay,
        predictors=predictors,
    )


def _with_weights(models: dict[str, Served], predictors: Mapping[str, object], weights: str) -> dict[str, Served]:
    """The models with weights in fewer bits, all of them: /v1/predict would compute with those that they have."""
    if predictors:
        raise InputError(
            f"--weights is {weights!r}, with which only language models are served: "
            f"serve {', '.join(predictors)} without it"
        )
    return {name: served.with_weights(weights) for name, served in models.items()}


def _named(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The models, each with its name: that of its folder by default."""
    found = [(Path(args.run).resolve().name, args.run)] if args.run else []
    for one in args.model or []:
        name, equals, path = one.partition("=")
        if not equals or not name or not path:
            raise InputError(f"--model is {one!r}; it must be NAME=RUN")
        found.append((name, path))
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise InputError(f"two models have the same name ({', '.join(names)}); name each of them: --model NAME=RUN")
    return found


def parser() -> argparse.ArgumentParser:
    """What it takes."""
    parser = argparse.ArgumentParser(
        prog="elman serve", description="Serve models with their states over HTTP.", allow_abbrev=False,
        epilog="elman serve backup STORE TO copies a store, while a server runs on it or not.",
    )  # fmt: skip
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run directory or a saved model")
    parser.add_argument("--model", action="append", metavar="NAME=RUN", help="another model; may be repeated")
    parser.add_argument(
        "--weights", metavar="bfloat16|int8",
        help="store the weights of products in fewer bits; by default as they are. For language models",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--port", type=int, default=8080, help="0 for any free port")
    parser.add_argument(
        "--store", metavar="FILE", help="keep sessions in this file; without it they end with the server"
    )
    parser.add_argument("--durability", choices=TIERS, help="process survives kill -9, power the loss of power too")
    parser.add_argument("--ttl", type=float, default=86_400.0, help="seconds after which an idle session expires")
    parser.add_argument(
        "--drain_delay", type=float, default=0.0, metavar="SECONDS",
        help="how long requests are served after SIGTERM, while /readyz answers 503 so that load balancers notice",
    )  # fmt: skip
    parser.add_argument(
        "--api_key_file", metavar="FILE",
        help="lines `tenant sha256`, or `tenant sha256 operator` for /metrics; read again on SIGHUP",
    )  # fmt: skip
    parser.add_argument(
        "--state_key_file", metavar="FILE",
        help="keys that sign states carried by clients: the first signs, all verify; read again on SIGHUP",
    )  # fmt: skip
    parser.add_argument("--insecure", action="store_true", help="let other machines connect without keys")
    parser.add_argument("--print_limits", action="store_true", help="print every limit, and exit")
    return parser
