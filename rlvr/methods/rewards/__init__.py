"""What is done to rewards before they become advantages."""
