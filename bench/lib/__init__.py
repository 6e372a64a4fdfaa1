"""Parts that the programs of the bench share."""
