"""tau_0 and T_low from a model's own answers: what ReSET must know of a checkpoint before it decodes with it."""
