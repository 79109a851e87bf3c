"""Operations that users request: a request in, a record and its outcome out."""
