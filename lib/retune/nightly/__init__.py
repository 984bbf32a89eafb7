"""Night after night: a fleet of networks, tuned for its devices while nobody needs them.

`config` reads the file, `window` the clock, `fleet` divides the minutes, `night` keeps what was
planned and done, `summary` and `notify` tell of it. Nothing here knows of Prefect.
"""
