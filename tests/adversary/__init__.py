"""A standing adversary: odd models crossed with odd inputs, each answered exactly or refused with a sentence.

`models` draws models of its own making, `families` draws transformers configurations, `inputs` draws what they are given,
`draw` puts one draw together and gives the verdict. Everything follows from one seed, so a failure is `draw(seed)`.
"""
