"""What is wrong with a dataset: bad files, duplicates, label leaks; and a contact sheet to look at."""
