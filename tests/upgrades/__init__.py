"""A new version of an application, rolled in while the old one runs."""
