"""How costs are found: engines are asked, timed and compared."""
