"""The super-link behind a guard: ``python -m tfdpbc.federated.link`` takes the options of ``flower-superlink``.

Flower serves everything on one port: the nodes' interface, which asks for their keys, and those that submit apps, register
nodes and hand out work, which ask for nothing. Whoever reached the port could run code as the server, or start a run that asks
the clients for their steps. The guard lets other machines reach the nodes' interface only.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from tfdpbc.federated.flower_missing import explain
from tfdpbc.federated.processes import end_with_parent

with explain():
    from flwr.superlink import main as service
    from flwr.superlink.cli.flower_superlink import flower_superlink

NODES = "/v1/fleet/"
MAX_BODY = 1 << 24
"""Bytes of a request from another machine; Flower's pieces have some 5 MiB."""


class Guard:
    """An ASGI application around Flower's.

    Args:
      app: Flower's.
    """

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable], send: Callable) -> None:
        if scope["type"] == "lifespan" or is_local(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(NODES):
            await self._app(scope, _short(receive), send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"from the server's own machine only\n"})
        else:
            await send({"type": "websocket.close", "code": 1008})


def is_local(scope: dict[str, Any]) -> bool:
    """Whether a connection comes from this machine: by loopback, or from the very address that it goes to."""
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        return False
    try:
        there = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return False
    there = getattr(there, "ipv4_mapped", None) or there
    return there.is_loopback or (server is not None and client[0] == server[0])


def _short(receive: Callable[[], Awaitable]) -> Callable[[], Awaitable]:
    """The request's body, cut off where it is longer than an honest one."""
    total = 0

    async def limited() -> Any:
        nonlocal total
        event = await receive()
        total += len(event.get("body", b""))
        return {"type": "http.disconnect"} if total > MAX_BODY else event

    return limited


def main() -> None:
    """Runs Flower's super-link with the guard around it."""
    end_with_parent()
    create = service.create_app
    service.create_app = lambda *given, **named: Guard(create(*given, **named))
    flower_superlink()


if __name__ == "__main__":
    sys.exit(main())
