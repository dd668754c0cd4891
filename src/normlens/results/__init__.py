"""Results that hold no model: analyses, explanations, and how they are stored."""
