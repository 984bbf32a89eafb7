"""Search: tasks from a graph, tuners that propose candidates, and the trial budget's allocator."""
