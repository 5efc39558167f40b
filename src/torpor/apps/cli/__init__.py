"""The command ``torpor``: a client of the API, and the few commands that work on the home itself.

Commands import what they need when they run, so that the command line starts fast.
"""
