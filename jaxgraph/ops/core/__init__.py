"""What ops are made of: messages, their reductions, and the fold and pull of edge groups."""
