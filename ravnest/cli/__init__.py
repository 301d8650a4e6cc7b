"""The command line: one thin module for each command, over the Python door (ravnest/api.py).

In: options. Out: what views/ draw on a terminal, or one JSON document; an exit code.
"""
