"""What is kept, and where: records, the store in memory or in a file, sessions, their past, counts by tenant."""
