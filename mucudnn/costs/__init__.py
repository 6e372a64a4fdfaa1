"""What algorithms cost: measured times and workspaces, and the files that keep them."""
