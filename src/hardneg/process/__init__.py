"""The running process: threads, memory, its place among others, how it is stopped, how it reports progress."""
