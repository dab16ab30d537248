"""Refusal, when a function is traced, of what would differ between numbers of parts.

`message_check` follows the edges of a chunk through a message function by the rules of `axis_*`;
`row_check` follows rows of nodes, and sums over them, through a function of a shard by those and by
the rules of `row_*`; `random_check` and `output_check` look at random numbers and results.
"""
