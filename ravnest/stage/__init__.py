"""One stage's process: the thread that owns its sockets, the thread that computes, and the glue between."""
