"""What is recorded of a run while it goes: events, metrics, times and timelines.

In: what the stages report. Out: events for an observer, metrics.jsonl and trace.json.
"""
