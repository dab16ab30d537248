"""The cost model of layers: the time of a part, learned from measured times (ROC, section 4)."""
