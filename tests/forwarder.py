"""A TCP forwarder on the loopback that can be frozen, cut and replaced: the network of a bad day."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

from tests.servers import RunningServer, free_port


class _Pair:
    """One connection through the forwarder: two sockets, two threads that copy."""

    def __init__(self, near: socket.socket, far: socket.socket, flowing: bool) -> None:
        self.near, self.far = near, far
        self.flowing = threading.Event()
        if flowing:
            self.flowing.set()
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.flowing.wait()
                sink.sendall(data)
        self.flowing.wait()
        self.close()

    def close(self) -> None:
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.flowing.set()


class Forwarder:
    """Listens on ``port`` of the loopback and copies to and from a server.

    ``freeze`` stops all copying and keeps the sockets open (a half-open link); ``thaw`` lets it go on. ``replace``
    leaves frozen what is frozen and serves new connections. ``cut`` closes every connection; ``refuse`` closes the door
    as well, until ``replace``.
    """

    def __init__(self, server: RunningServer) -> None:
        self._target: tuple[str, int] | Path = server.socket or ("127.0.0.1", server.port)
        self._pairs: list[_Pair] = []
        self._flowing = True
        self._lock = threading.Lock()
        self._listener = self._listen(free_port())  # nobody else takes it while the door is closed
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        """The URL of the server by way of the forwarder."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections were made since the start."""
        return len(self._pairs)

    def point_to(self, server: RunningServer) -> None:
        """Serve new connections from another server."""
        self._target = server.socket or ("127.0.0.1", server.port)

    def freeze(self) -> None:
        """Stop copying; connections, old and new, stay open and silent."""
        with self._lock:
            self._flowing = False
            for pair in self._pairs:
                pair.flowing.clear()

    def thaw(self) -> None:
        """Go on copying, including what was held back."""
        with self._lock:
            self._flowing = True
            for pair in self._pairs:
                pair.flowing.set()

    def replace(self) -> None:
        """Serve new connections; frozen ones stay frozen."""
        with self._lock:
            self._flowing = True
            if self._listener.fileno() < 0:
                self._listener = self._listen(self.port)

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            for pair in self._pairs:
                pair.close()

    def refuse(self) -> None:
        """Close every connection and accept no more."""
        with self._lock:
            _shut(self._listener)
        self.cut()

    def close(self) -> None:
        """End it all."""
        self.refuse()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                try:
                    far = self._dial()
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    pair = _Pair(near, far, self._flowing)
                    self._pairs.append(pair)
                    if listener.fileno() < 0:
                        pair.close()  # it came in as the door was closed

    def _dial(self) -> socket.socket:
        if isinstance(self._target, Path):
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(str(self._target))
            except OSError:
                far.close()
                raise
            return far
        return socket.create_connection(self._target)

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shut(listener: socket.socket) -> None:
    # Closing alone does not wake a thread that accepts.
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
