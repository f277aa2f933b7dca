"""What several floors of this package are made of; nobody outside of it imports this."""
