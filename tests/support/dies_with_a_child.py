"""Stands in for a stage's program: it forks a child, says that it listens, and is killed when it is to run. The child
holds the line for longer than any test."""

import os
import signal
import socket
import sys
import time

from ravnest.stage.line import Line

CHILD_S = 600.0

if __name__ == "__main__":
    line = Line(socket.socket(fileno=int(sys.argv[2])))
    line.receive()
    if (child := os.fork()) == 0:
        time.sleep(CHILD_S)
        os._exit(0)
    line.send(str(child).encode())
    line.receive()
    os.kill(os.getpid(), signal.SIGKILL)
