"""The command line: one thin module for each command, over the Python door.

In: options. Out: what views/ draw on a terminal, or one JSON document; an exit code.
"""
