"""Does a plan do on its machines what `ravnest simulate` and `ravnest rehearse` said before?

In: varied plans on a Ray cluster of several network namespaces. Out: RESULT.md with predicted beside achieved figures.
"""
