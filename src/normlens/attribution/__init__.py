"""The whole model: which number, the frozen pass, the backward pass, the terms, the proof. Read the modules in this order:

1. `explain_request`, `questions`, `jobs`: what is asked, which entry of the output at which position, and the rows to run.
2. `rules` (with `elementwise`, `attention_rules`, `integrated`): one rule for each kind of operation, in one table.
3. `frozen`: the pass that applies them; `lineage` is what it remembers of a tensor, `lookups` how it follows token
   ids, `patches` what it stands in for.
4. `observer` (with `layers`, `edges`): what is read of a pass where it enters a layer, attends, or adds a constant.
5. `terms`, `term_proof`: one forward and one backward pass, what they give, and whether that may be believed.
6. `solving`, `results`: batches to proved terms, and terms to labelled arrays.
7. `explain`: all of it in sequence, for texts and for tensors.
8. `methods` (with `items`, `gradients`, `erasure`): these terms and what others propose instead, in one table.
"""
