"""The studies, one file each, in the words of a paper's experiment section."""
