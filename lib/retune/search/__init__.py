"""Search: tasks from a graph, tuners that propose candidates, and the schedulers of tasks."""
