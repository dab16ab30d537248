"""Functions of a shard that run part after part, with everything else on the host."""
