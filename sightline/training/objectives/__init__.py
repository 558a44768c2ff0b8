"""What a training step minimizes: classification, masked patch prediction, masked autoencoding, LeJEPA."""
