"""StagedLoader: batches in shared memory, which workers fill and the training reads."""
