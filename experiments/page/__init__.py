"""What the page of a run costs the machine that serves it and the browser that shows it, and its pictures in docs/.

In: generated runs of many nodes, and one that was recorded. Out: RESULT.md, and docs/images/page-*.png.
"""
