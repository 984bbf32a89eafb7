"""Boards of a farm as devices: what a client knows of them, and says to them.

Open first: `runner.FarmRunner`; what runs on the boards is `retune.farm`.
"""
