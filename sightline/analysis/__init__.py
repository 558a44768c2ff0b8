"""Numbers out of models: results, no drawing."""
