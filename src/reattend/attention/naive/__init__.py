"""Each mechanism as its formula, in float64 and as plainly as possible: the oracle of the tests.

Nothing here shares code with the mechanisms; modules have the names of those they are twins of.
"""
