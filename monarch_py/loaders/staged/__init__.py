"""StagedLoader: workers read batches into shared memory, where the training uses them."""
