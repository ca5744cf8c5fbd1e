"""Engines: requests in, completions and traces out (``protocol``); open one with ``factory.open_engine``."""
