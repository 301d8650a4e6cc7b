"""Measures collaborative training: how fast averaging plans are over unequal links, and what comes of training by them.

In: nothing, or which part. Out: RESULT.md, result.json and a picture beside this file.
"""
