"""Programs for the interpreters of other libraries, run by file name; none imports jaxgraph."""
