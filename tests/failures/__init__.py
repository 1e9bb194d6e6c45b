"""What goes wrong around the product: one clear line, the right exit code, nothing lost."""
