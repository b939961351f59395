"""The running program: the thread that owns the engine, its queue, and the state of each open page."""
