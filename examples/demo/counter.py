"""A program with something to lose: it counts in memory and nowhere else.

counter.py serve       count ten times a second, answer on 127.0.0.1:8000
counter.py get         "VALUE NONCE" of the running counter
counter.py add N       add N to it
counter.py wait        return as soon as it answers

NONCE is drawn when the counter starts, so an equal nonce after a fork or a
checkout means the same process goes on, not a new one.
"""

import secrets
import socket
import socketserver
import sys
import threading
import time

ADDRESS = ("127.0.0.1", 8000)


def serve():
    state = {"value": 0, "nonce": secrets.token_hex(8)}
    lock = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            n = int(self.rfile.readline())
            with lock:
                state["value"] += n
                self.wfile.write("{value} {nonce}\n".format(**state).encode())

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    server = Server(ADDRESS, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(0.1)
        with lock:
            state["value"] += 1


def ask(n):
    with socket.create_connection(ADDRESS, timeout=5) as s:
        s.sendall(b"%d\n" % n)
        return s.makefile().readline().strip()


def main(args):
    if args == ["serve"]:
        serve()
    elif args == ["get"]:
        print(ask(0))
    elif len(args) == 2 and args[0] == "add":
        print(ask(int(args[1])))
    elif args == ["wait"]:
        for _ in range(100):
            try:
                ask(0)
                return
            except OSError:
                time.sleep(0.1)
        sys.exit("counter does not answer")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
