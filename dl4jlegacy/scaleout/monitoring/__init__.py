"""What a run shows of itself: state, statistics, curves, observers."""
