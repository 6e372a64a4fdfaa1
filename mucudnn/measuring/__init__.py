"""The search for costs: asking engines for algorithms, timing them, comparing configurations."""
