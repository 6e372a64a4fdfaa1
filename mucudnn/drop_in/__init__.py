"""What a program under `mucudnn run` gets: which libcudnn, and whether interposition works."""
