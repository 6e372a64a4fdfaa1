"""Programs that measure; `bench/results` holds the figures that were committed."""
