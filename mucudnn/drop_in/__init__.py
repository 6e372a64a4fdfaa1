"""The drop-in as the package sees it: its file, the libraries it stands in front of, and the doctor."""
