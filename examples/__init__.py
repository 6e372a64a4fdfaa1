"""Programs that show how mucudnn is used."""
