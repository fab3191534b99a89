"""A board of finished studies as static pages."""
