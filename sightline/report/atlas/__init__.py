"""The atlas: every claim that studies have decided, on one page."""
