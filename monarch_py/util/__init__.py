"""What any module may use: sizes, spelling, processes, signals, file systems that hang."""
