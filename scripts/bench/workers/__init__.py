"""What benchmarks start: programs that run under legate, or beside it with PyTorch."""
