"""Nonlinear recurrences parallel in time: adjoint.py has the gradient by an associative scan, newton.py the states."""
