"""Windows at work: the operators behind `window`, `window_all`, `count_window` and window joins."""
