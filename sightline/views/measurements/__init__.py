"""Views of measurements that stand beside other numbers: published ones, other test sets, compute."""
