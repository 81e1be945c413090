"""What replays steps on the arrays of each library: a file has its name."""
