"""What the operating system provides: clocks, deadlines, signals, files and file systems."""
