"""A front end: a Celery worker that holds WebSocket clients. It pins their ids, so their tasks run here."""

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path

from celery import Celery
from celery.signals import worker_ready, worker_shutting_down
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from celery_sticky import Keyspace, NotAMember, Pin, PinnedElsewhere, Sticky, StoreUnavailable
from celery_sticky.signals import pins_forgotten, pins_lost

redis = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
prefix = {"global_keyprefix": os.environ.get("KEY_PREFIX", "reverse-routing:")}

app = Celery("front_end", broker=redis, backend=redis)
app.conf.update(
    broker_transport_options=prefix,
    result_backend_transport_options=prefix,
    sticky_lease_ttl=3.0,  # short, to keep the example short: a dead front end's texts move after 4 s
    sticky_lease_margin=0.8,
    sticky_settle=0.5,
)
sticky = Sticky(app)
sticky.keyspace(Keyspace("clients", pins=True, unpinned="refuse"))

connections: dict[str, ServerConnection] = {}
"""The newest connection of each client that is here."""
pins: dict[ServerConnection, Pin] = {}
"""The pin of each connection. If a client has two connections, its newest pin counts."""
changing = asyncio.Lock()
"""Held while a connection and its pin change together, so that the newest connection has the newest pin."""


@app.task(
    key="client",
    keyspace="clients",
    bind=True,
    autoretry_for=(KeyError, ConnectionClosed, TimeoutError),  # it has just left; the retry goes to its new front end
    default_retry_delay=1,
)
def push(self, client, text):
    connection = connections[client]
    asyncio.run_coroutine_threadsafe(deliver(connection, text), connection.loop).result(timeout=10)
    return f"delivered by {self.request.sticky.worker}"


async def deliver(connection: ServerConnection, text: str) -> None:
    async with asyncio.timeout(5):
        await connection.send(text)
        await (await connection.ping())  # a connection keeps order: the pong confirms the text too


async def hold(connection: ServerConnection) -> None:
    """Hold a client until it disconnects. Its first message is its id."""
    with suppress(ConnectionClosed):
        client = await connection.recv()
        try:
            async with changing:
                connections[client] = connection  # before the pin: a task may arrive at once
                pins[connection] = await asyncio.to_thread(sticky.pin, client, "clients", take=True)
            await connection.send("welcome")
            async for _ in connection:
                pass  # ignore messages from clients
        except (NotAMember, StoreUnavailable):
            await connection.close(1013, "try again later")
        finally:
            async with changing:
                if connections.get(client) is connection:
                    del connections[client]
                if connection in pins:  # if the client has reconnected, this pin does not hold its id any more
                    await asyncio.to_thread(pins.pop(connection).release)
            print(f"a connection of {client} has ended")


async def pin_again(clients: frozenset[str]) -> None:
    """Pin the clients that we still hold: another front end took their pins, or this worker or the store was away."""
    for client in clients:
        connection = connections.get(client)
        if connection is None:
            continue
        try:
            async with changing:
                if connections.get(client) is connection:
                    pins[connection] = await asyncio.to_thread(sticky.pin, client, "clients")
        except (PinnedElsewhere, NotAMember, StoreUnavailable):
            await connection.close(1013, "try again later")  # the client may be elsewhere and this connection dead


async def serve_clients() -> None:
    loop = asyncio.get_running_loop()
    port = int(os.environ.get("PORT", "0"))
    async with serve(hold, "127.0.0.1", port) as server:
        if "PORT_FILE" in os.environ:
            Path(os.environ["PORT_FILE"]).write_text(str(server.sockets[0].getsockname()[1]))

        @worker_shutting_down.connect(weak=False)
        def close(**_):  # clients go to another front end while this one finishes its tasks
            loop.call_soon_threadsafe(server.close)

        @pins_lost.connect(weak=False)
        def pins_are_lost(keys, **_):
            asyncio.run_coroutine_threadsafe(pin_again(keys), loop)

        @pins_forgotten.connect(weak=False)
        def all_pins_are_lost(**_):
            asyncio.run_coroutine_threadsafe(pin_again(frozenset(connections)), loop)

        await server.wait_closed()


@worker_ready.connect
def start(**_):
    threading.Thread(target=asyncio.run, args=[serve_clients()], daemon=True).start()
