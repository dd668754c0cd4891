"""Attribution: question ─▶ frozen pass ─▶ terms ─▶ proof. Read the modules in this order:

1. `request`, `questions`, `jobs`: the options, the explained number, and the rows to run.
2. `rules` (with `elementwise`, `attention`, `integrated`, `affine`): one rule for each kind of operation, in one table.
3. `frozen`: the pass that applies them; `lineage` is what it remembers of a tensor, `lookups` how it follows token
   ids, `patches` what it stands in for.
4. `observer` (with `layers`, `edges`): the terms that are read where a pass enters a layer, attends, or adds a constant.
5. `terms`, `proof`: one forward and one backward pass, the terms that they give, and their checks; `sharing` distributes
   biases for methods that do so.
6. `explain`, `results`: all of it in sequence, and labelled arrays.
"""
