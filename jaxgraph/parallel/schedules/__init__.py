"""The schedules by which rows of other parts reach the receivers of a part, a module each."""
