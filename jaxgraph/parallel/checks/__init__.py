"""Checks of traced functions: their results must not depend on the number of parts.

`message_check` follows the edges of a chunk through a message function, as `row_check` follows rows.
`row_check` follows rows of nodes, and sums over them, through a function of a shard, by these rules
and those of `row_*`. `random_check` checks random numbers, `output_check` checks outputs.
"""
