"""nodes.yaml and plan.yaml: their schema, the conversion to and from the planner's objects, and what is wrong in them.

In: text of a file. Out: a Fleet or a Plan, or an InvalidInput that names the file, the key and what was expected.
"""
