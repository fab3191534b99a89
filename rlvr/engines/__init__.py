"""Engines take a resolved run and leave a manifest, metrics and a Hugging Face checkpoint behind."""
