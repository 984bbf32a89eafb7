"""One thread for each library whose threads wait by spinning: tests run side by side.

A second thread of numpy's OpenBLAS, of xgboost's OpenMP or of onnxruntime waits for its next work
at full speed, and takes as much time again as the test that asked for it.
"""

import os
from typing import Any

import onnxruntime


def use_one_thread() -> None:
    """From now on, in this process and those that it starts; what states a number keeps it."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # read once, so that it is for processes to come
    onnxruntime.InferenceSession = _Session


class _Session(onnxruntime.InferenceSession):
    def __init__(self, model: Any, sess_options: Any = None, **others: Any) -> None:
        options = sess_options or onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.intra_op_num_threads or 1
        super().__init__(model, options, **others)
