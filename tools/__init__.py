"""Build and checks of the generated notebooks."""
