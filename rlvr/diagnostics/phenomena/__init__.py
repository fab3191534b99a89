"""The claims of the papers as measurements on this study's runs: one module a claim."""
