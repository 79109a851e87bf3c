"""What the operating system gives: clocks, deadlines, signals, files and file systems."""
