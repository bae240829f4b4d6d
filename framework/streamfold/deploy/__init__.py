"""What follows from an application's routes for its deployment, and the alarms that reach an operator."""
