"""Programs that measure mucudnn; `bench/results` holds the committed figures."""
