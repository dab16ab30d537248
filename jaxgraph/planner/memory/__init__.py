"""The memory manager: what a device holds during a training step (ROC, section 5)."""
