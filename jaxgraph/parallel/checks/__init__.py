"""Checks of traced functions: their results must not depend on the number of parts.

`row_check` follows rows of nodes, and sums over them, through a function of a shard.
`message_check` follows the edges of a chunk through a message function by the same rules, those of
`axis_*` and `row_*`. `output_check` checks outputs and random numbers.
"""
