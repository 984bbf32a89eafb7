"""The wish to measure no more: set by whoever watches the run, read between two batches.

It is a flag of the process, since Prefect's tasks take plain data only.
"""

import threading

STOP = threading.Event()
