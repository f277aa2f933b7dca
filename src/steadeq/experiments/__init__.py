"""Sets of runs with what is drawn from them."""
