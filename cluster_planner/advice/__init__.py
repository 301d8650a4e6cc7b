"""What a user could change, and what that would gain; what cannot be met, and why nodes are left out.

In: a finished plan and what it was made from. Out: suggestions and reasons with numbers, in plain words.
"""
