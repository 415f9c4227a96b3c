"""The bookkeeping of blocks and the scheduler, by the rules of vLLM 0.32.0."""
