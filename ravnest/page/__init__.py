"""The live page of a run: its folder, shown in a browser, as JSON and as Prometheus metrics.

In: the folder of a run, which is only read, and who may look. Out: a server. Running or finished is all the same to
it, and the run does not know of it.
"""
