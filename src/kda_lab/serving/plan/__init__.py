"""Planning a hybrid KV cache: from a published config to blocks that fit."""
