"""Operations that users request, and their outcomes."""
