"""How the rows of other parts reach the receivers of a part: one module for each schedule."""
