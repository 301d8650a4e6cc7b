"""The first files of a new job: what `ravnest init` writes.

In: what is to be learned, the machines, and how long it may take (`Answers`). Out: a folder with job.yaml, nodes.yaml,
model.py and data.py, which plans and trains as it is, and is meant to be changed by its owner.
"""

from ravnest.templates.first_files import KINDS, Answers, require_free, write_first_files

__all__ = ["KINDS", "Answers", "require_free", "write_first_files"]
