"""Valid calls changed at random: each must raise one of the library's errors or be right."""
