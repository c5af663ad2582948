"""Known mistakes: small variations of the reference, one module per stage, all in `catalogue`."""
