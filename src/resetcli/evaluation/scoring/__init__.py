"""From the text a model wrote to an answer and a score. ``score.score_output`` is the one entry."""
