"""Tables, pictures and pages of docs/, made of measured figures."""
