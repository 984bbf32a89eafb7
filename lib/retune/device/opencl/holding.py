"""The kernel behind which launches wait until all are enqueued, and how many wait at once.

A GPU is done with a small kernel before the host has enqueued the next one: timed one by one, all
such kernels last as long as a launch. See `runtime.Device.time_queued`.
"""

QUEUED_LAUNCHES = 256
"""Launches that are enqueued at once behind a holding kernel: any driver takes as many."""
ENQUEUE_S = 12e-6
"""Time to enqueue a launch, at most (NVIDIA, from Python: 8 us)."""
LEAST_LAUNCH_S = 1e-6
"""No launch is shorter; the difference of two times may be."""
LEAST_SAMPLES = 3
"""Times of the holding kernel alone the least of which is subtracted, at least."""
ATTEMPTS = 3
"""To find a time that is not below LEAST_LAUNCH_S for each launch, which stands for it then."""
PROFILED_LAUNCHES = 32
"""Runs of one launch that its time is the mean of."""
HOLD_STEPS = 100_000
"""Steps by which the time of one is found: some milliseconds."""
TEXT = """__kernel void hold(__global float* out, const int steps) {
  float x = 0.5f;
  for (int i = 0; i < steps; ++i) {
    x = sin(x) + 1.0f;
  }
  out[0] = x;
}
"""
"""Each step waits for the one before it, so that the time is proportional to their number."""
