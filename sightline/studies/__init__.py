"""The papers as claims, and what saved results say of them."""
