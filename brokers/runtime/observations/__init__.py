"""What brokers record about serving, for audits and checkers: the records, and the threads that
write them.
"""
