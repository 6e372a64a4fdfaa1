"""The costs of algorithms: measured times and workspaces, and the files that keep them."""
