"""One prompt under two settings: what is compared, its figures, and the screen that shows them."""
