"""Checks of a dataset: bad files, duplicates, label leaks; and a contact sheet."""
