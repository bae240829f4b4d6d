"""A server of a test that answers what it is told, and keeps what it was asked."""

import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    headers: dict  # names in lower case
    body: bytes


class Stub:
    """What the server answers to every request, and the requests so far."""

    def __init__(self, url):
        self.url = url
        self.requests = []
        self.answer(200, b'{"items":[{"index":{"status":201}}]}')

    def answer(self, status, body, kind="application/json"):
        self.status, self.body, self.kind = status, body, kind
        self.breaks = False
        self.accepted = None

    def accept(self, authorization):
        """Refuses requests of anybody else, 401."""
        self.accepted = authorization

    def break_off(self):
        """Ends each connection before an answer."""
        self.breaks = True


@contextmanager
def serving(certificate=None):
    """A stub on loopback; encrypted with a certificate and its key, in one file."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self):
            size = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            stub.requests.append(Request(self.command, self.path, headers, self.rfile.read(size)))
            if stub.breaks:
                self.close_connection = True
                return
            is_refused = stub.accepted not in (None, headers.get("authorization"))
            self.send_response(401 if is_refused else stub.status)
            self.send_header("content-type", stub.kind)
            self.send_header("content-length", str(len(stub.body)))
            self.end_headers()
            self.wfile.write(stub.body)

        do_GET = do_POST = do_DELETE = handle_one  # noqa: N815 - the names of the base class

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    stub = Stub(f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
