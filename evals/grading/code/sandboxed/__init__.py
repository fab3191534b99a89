"""Scripts that run inside a sandbox: they see this directory and the standard library, and nothing else of ours."""
