"""A farm of boards: its scheduler, what runs on a board, certificates of those who take part.

Open first: `serve.serve`. How a client sees a farm is `retune.device.remote`.
"""
