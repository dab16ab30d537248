"""Building blocks of ops: messages, their reductions, and the fold and pull of edge groups."""
