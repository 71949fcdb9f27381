"""The same levels as minigrid environments, and BabyAI's levels for the engine."""
