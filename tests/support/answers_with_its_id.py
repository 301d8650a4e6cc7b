"""Run as a stage's process: it answers each message with the id of its process."""

import os
import socket
import sys

from ravnest.stage.line import Line

if __name__ == "__main__":
    line = Line(socket.socket(fileno=int(sys.argv[2])))
    while True:
        line.receive()
        line.send(str(os.getpid()).encode())
