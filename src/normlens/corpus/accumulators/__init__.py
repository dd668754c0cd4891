"""Statistics that merge: `update` takes in data, `merge` takes in another part of the data, `result` gives the answer.

`state` is everything as arrays, to be sent or saved; `load` takes such a state in, on top of what is there already. Any
split of the data in any order gives the same result: counts are taken in fixed bins, sums in float64. A result of nothing is
an error. Only numpy is needed here.
"""
