"""The whole model as one affine map: the rules that freeze it, the backward pass through it, and what it gives."""
