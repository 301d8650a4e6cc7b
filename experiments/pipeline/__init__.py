"""Does the pipeline stay busy whatever the latency, does it learn, and what does its runtime cost?

In: paced models and real ones. Out: RESULT.md, beside synchronous schedules and one process.
"""
