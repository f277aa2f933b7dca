"""What the library is made of and nobody outside of it imports."""
