"""Does a GPU train as fast as a plain loop on it, and as fast as `ravnest profile` and `ravnest plan` said?

In: a machine with a CUDA device. Out: RESULT.md, with what was predicted beside what was measured.
"""
