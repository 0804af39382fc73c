"""Connections and sockets: who they are from, what they may hold, how long they may take; start, drain and stop."""
