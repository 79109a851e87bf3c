"""What brokers record about serving, for audits and checkers: the records, their stores, and the
threads that write.
"""
