"""Training: one round of Algorithm 1, the loop that runs rounds, checkpoints, callbacks."""
