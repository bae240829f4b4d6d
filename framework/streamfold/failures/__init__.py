"""What failed, processed late."""
