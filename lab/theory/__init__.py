"""The papers' identities, held against the product's own functions: ``entrostat lab theory``.

One module an identity; each has a ``check`` that draws random cases and returns findings. What the product computes
(token covariance, SCOPE score, token statistics, distinct tokens, policy loss) is called through its module, never
copied, so that a mistake there shows here (``tests/theory/`` plants some).
"""
