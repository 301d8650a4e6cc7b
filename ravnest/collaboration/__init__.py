"""Collaborative training (DeDLOC): volunteers compute at their own pace, and make large-batch steps together.

In: a job with `mode: collaborative`, an invitation, and peers that come and go. Out: averaged steps that are the same
at all of them, a curve, checkpoints, and who gave how many samples.
"""
