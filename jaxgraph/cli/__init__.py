"""The command line: `jaxgraph train`, `partition`, `datasets` and `info`."""
