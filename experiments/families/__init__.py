"""Do models and data of many families train on what their user means?

In: small models and data sets, as a user would write them. Out: RESULT.md.
"""
