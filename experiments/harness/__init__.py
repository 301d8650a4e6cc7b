"""What the experiments share: the command line, reports with claims and verdicts, and paced models.

In: measured rows. Out: RESULT.md, result.json and result.png.
"""
