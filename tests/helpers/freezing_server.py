"""A server that resets connections of the time before a freeze at their next request, as AWS finds them dead then."""

import socket
import struct
from contextlib import suppress
from threading import Thread
from zlib import crc32

AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER of no seconds: a close resets the connection."""


class FreezingServer:
    """Answers each request with one body. closed: each further request of any connection is reset."""

    def __init__(self, body):
        self.body, self.freezes, self.closed, self.requests = body, 0, False, 0
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def freeze(self):
        self.freezes += 1

    def close(self):
        self.listening.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                Thread(target=self._serve, args=(connection, self.freezes), daemon=True).start()

    def _serve(self, connection, made):
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while line := stream.readline():
                length = 0
                while line.strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                    line = stream.readline()
                stream.read(length)
                self.requests += 1
                if self.closed or made != self.freezes:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                    return
                head = f"Content-Length: {len(self.body)}\r\nx-amz-crc32: {crc32(self.body)}\r\n"
                kind = "Content-Type: application/json\r\n\r\n"
                connection.sendall(f"HTTP/1.1 200 OK\r\n{head}{kind}".encode() + self.body)
