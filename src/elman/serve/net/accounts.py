"""What is open and what is held at the edge: connections by address until one has shown a key, then by tenant; sockets;
and the bytes of requests and of answers that are on their way."""

from __future__ import annotations

from typing import Protocol

from elman.serve.errors import HttpError, busy
from elman.serve.limits import Limits


class Guest(Protocol):
    """A connection, as far as it is counted."""

    address: str
    tenant: str | None  # whose key it has shown last

    @property
    def idle(self) -> bool:
        """Whether no request is under way on it."""

    def shed(self) -> None:
        """Close it: another needs its place."""


class Account:
    """What one tenant has open, and how many bytes are in memory for it."""

    __slots__ = ("bytes", "connections", "sockets")

    def __init__(self) -> None:
        self.connections = self.sockets = self.bytes = 0


class Accounts:
    """All of them. Without keys there is one tenant, and nobody beside it to protect: then only bytes are limited."""

    def __init__(self, limits: Limits, keys: bool) -> None:
        self.limits, self.keys = limits, keys
        self.count = 0  # connections and sockets
        self.tenants: dict[str, Account] = {}
        self.guests: dict[Guest, None] = {}  # those without a key, the oldest first
        self.addresses: dict[str, dict[Guest, None]] = {}  # the same, by address

    def of(self, tenant: str) -> Account:
        """The account of a tenant."""
        found = self.tenants.get(tenant)
        if found is None:
            found = self.tenants[tenant] = Account()
        return found

    # Connections

    def enter(self, guest: Guest) -> HttpError | None:
        """A connection was made; why it is not served, if there is no room for it. The oldest one that is idle and has
        shown no key makes room."""
        here = self.addresses.setdefault(guest.address, {})
        self.guests[guest] = here[guest] = None
        self.count += 1
        if self.keys and len(here) > self.limits.keyless and not _shed(here, guest):
            return busy("too many connections without a key are open from your address", 1_000)
        if self.count > self.limits.connections:
            _shed(self.guests, guest)
        if self.count > self.limits.connections:
            return busy("too many connections are open", 1_000, 503)
        return None

    def leave(self, guest: Guest) -> None:
        """It is closed, or is a socket now."""
        if guest.tenant is not None:
            self.of(guest.tenant).connections -= 1
            self.count -= 1
            guest.tenant = None
        elif guest in self.guests:
            self.count -= 1
            del self.guests[guest]
            here = self.addresses[guest.address]
            del here[guest]
            if not here:
                del self.addresses[guest.address]

    def show(self, guest: Guest, tenant: str) -> None:
        """A request with a key of this tenant came on it, and none of this tenant before."""
        account = self.of(tenant)
        if self.keys and account.connections >= self.limits.tenant_connections:
            raise _closing(busy(f"{account.connections} connections of your keys are open, which is the limit", 1_000))
        self.leave(guest)
        guest.tenant = tenant
        account.connections += 1
        self.count += 1

    def open_socket(self, tenant: str) -> Account:
        """A socket more."""
        account = self.of(tenant)
        if self.keys and account.sockets >= self.limits.tenant_sockets:
            raise busy(f"{account.sockets} sockets are open with your keys, which is the limit", 1_000)
        account.sockets += 1
        self.count += 1
        return account

    def close_socket(self, account: Account) -> None:
        """One less."""
        account.sockets -= 1
        self.count -= 1

    # Bytes

    def reserve(self, account: Account, size: int) -> None:
        """So many bytes more are on their way for it; to be let go of by `bytes -= size`."""
        if account.bytes and account.bytes + size > self.limits.tenant_bytes:
            raise busy(
                f"{account.bytes} bytes of your requests and answers are under way, and this is {size} more; "
                f"{self.limits.tenant_bytes} at most", 100,
            )  # fmt: skip
        account.bytes += size


def _shed(guests: dict[Guest, None], but: Guest) -> bool:
    """Close the oldest that is idle, but not this one; whether there was one."""
    oldest = next((guest for guest in guests if guest.idle and guest is not but), None)
    if oldest is not None:
        oldest.shed()
    return oldest is not None


def _closing(refused: HttpError) -> HttpError:
    refused.headers["connection"] = "close"
    return refused
