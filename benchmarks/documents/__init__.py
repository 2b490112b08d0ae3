"""What is made of figures: tables, pictures and the pages of docs/."""
