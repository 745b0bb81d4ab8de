"""A TCP proxy before a server, for faults of the network: cut, silent, healed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from harness.waiting import wait_until


class Proxy:
    """Listens on a loopback port and passes everything on, unless told not to. Its loop has a thread of its own."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._mode = "ok"
        self._writers: set[asyncio.StreamWriter] = set()
        self._stranded: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    @property
    def url(self) -> str:
        """The address as Celery takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Proxy:
        """Begin to listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(timeout=10)
        return self

    def silence(self) -> None:
        """Pass nothing on, and close nothing: what is sent waits here and arrives late, when it is healed."""
        self._mode = "silent"

    def strand(self) -> None:
        """Be silent on the connections there are; new ones are as good as ever."""
        self._do(lambda: self._stranded.update(self._writers))

    def cut(self) -> None:
        """Reset every connection, and refuse new ones."""
        self._mode = "refuse"
        self._do(self._abort_all)

    def reset(self) -> None:
        """Reset every connection; new ones are welcome."""
        self._do(self._abort_all)

    def heal(self) -> None:
        """Pass everything on again."""
        self._mode = "ok"
        self._do(self._stranded.clear)

    def teardown(self) -> None:
        """Leave no connection behind. May be called twice."""
        if not self._loop.is_closed():
            self._mode = "refuse"
            self._do(self._abort_all)
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            wait_until(lambda: not self._loop.is_running(), message="the proxy's loop ends")
            self._thread.join(timeout=10)
            self._loop.close()

    # -- in the loop ---------------------------------------------------------------------------

    def _do(self, what: Callable[[], Any]) -> None:
        async def do() -> None:
            what()

        asyncio.run_coroutine_threadsafe(do(), self._loop).result(timeout=10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        await asyncio.sleep(0.05)  # who has just been let in is thrown out by `_serve`
        self._abort_all()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._stranded.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "refuse":
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except asyncio.CancelledError:
            pass  # torn down
        finally:
            self._writers -= pair
            for one in pair:
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                while self._mode == "silent" or writer in self._stranded:
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the other end is gone: so is this one
        finally:
            writer.transport.abort() if self._mode == "refuse" else writer.close()
