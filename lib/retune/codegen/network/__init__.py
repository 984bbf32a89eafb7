"""Many kernels as one: persistent kernels, one thread, finalists in turns."""
